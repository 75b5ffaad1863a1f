"""local-cluster, from the outside in.

guard      the process that the user started: it outlives every mishap of the other and tidies up
run        what happens when: aggregators, then ranks, then the end
children   started processes, their output and their end
vhost, af_packet   what a transport needs, and which settings make the parts find each other
arguments  the command line
"""
