"""nic, from the outside in.

command_line  arguments, what is printed, the exit status
check         what a daemon misses on a device, and what to do
bind          another driver for a PCI device, or its former one again
devices       the network devices, and the ways in which a daemon can use each
machine       the machine's files, below a root directory that tests replace
"""
