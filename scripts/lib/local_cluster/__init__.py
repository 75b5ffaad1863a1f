"""local-cluster, from the outside in.

guard      the process that the user started: it survives every failure of the other and cleans up
run        the order: aggregators, then ranks, then the end
children   started processes, their output and their end
vhost, af_packet   what a transport needs, and the settings by which processes find each other
arguments  the command line
"""
