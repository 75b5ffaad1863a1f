"""The clock and the network, which loses, duplicates, delays and reorders packets, delivers very
old ones again, and ends the aggregator between any two of its sends."""
import collections
import heapq
import itertools
import random

from aggregator import Aggregator
from basics import Bug, Crash


class Network:
    def __init__(self, c):
        self.c, self.rng, self.t, self.queue = c, random.Random(c.seed * 2 + 1), 0.0, []
        self.count, self.ids = itertools.count(), itertools.count(1)
        self.sent, self.cover = collections.Counter(), collections.Counter()
        self.ranks = {}  # rank -> Worker, of those that run
        self.repaired = collections.Counter()  # (rank, when its way broke): results asked for
        self.crashes, self.sends_left, self.crashed = list(c.crashes), None, 0
        self.boot()

    def unique(self):
        return next(self.ids)

    def at(self, after, call, *arguments):
        heapq.heappush(self.queue, (self.t + after, next(self.count), call, arguments))

    def step(self):
        self.t, _, call, arguments = heapq.heappop(self.queue)
        call(*arguments)

    # the aggregator's process
    def boot(self):
        self.notice = None
        if self.crashes:
            self.sends_left, self.down = self.crashes.pop(0)
            self.notice = self.rng.choice((None, 2, 20, 100))  # sends before the end: it retires
        self.aggregator = Aggregator(self, self.unique())

    def guard(self, call, *arguments):
        aggregator = self.aggregator
        try:
            call(*arguments)
        except Crash:
            self.end(aggregator)

    def end(self, aggregator):
        if aggregator is not self.aggregator:
            return
        self.sends_left = None
        if aggregator.state == "active" and any(x.sync is not None for x in aggregator.streams):
            self.cover["killed while resuming"] += 1
        self.aggregator, self.crashed = None, self.crashed + 1
        self.at(self.down, self.boot)

    def kill(self, rank):
        if rank in self.ranks:
            self.c.died = self.t
            self.ranks.pop(rank).caller.dead = True

    def rejoin(self, rank):
        worker = self.ranks.get(rank)
        if worker and worker.state == "in" and not worker.leaving:
            worker.begin_join()

    # packets
    def send(self, sender, to, p):
        if sender == "A" and self.sends_left is not None:
            self.sends_left -= 1
            if self.sends_left < 0:
                raise Crash
            if self.sends_left == self.notice:
                self.aggregator.retiring = True
                self.cover["retired"] += 1
                self.at(self.rng.choice((3, 30, 150)), self.end, self.aggregator)
        self.sent[p.kind] += 1
        for receiver in range(self.c.ranks) if to == "group" else (to,):
            if to != "group" or self.cut_since(receiver) is None:
                self.carry(sender, receiver, p)

    def carry(self, sender, to, p):
        c, rng, copies = self.c, self.rng, 1
        if self.t < c.faults_until:
            copies = 0 if rng.random() < c.loss else 1
            for rank, downstream, begin, end in c.blackouts:
                if begin <= self.t < end and rank == (to if downstream else sender):
                    copies = 0
            while rng.random() < c.duplicates and copies < 4:
                copies += 1
            if rng.random() < c.ancient:
                self.at(rng.uniform(20, 3000), self.deliver, to, p, sender)
        for _ in range(copies):
            late = rng.random() < c.late
            self.at(rng.uniform(1, c.latest) if late else rng.uniform(0.9, 1.1),
                    self.deliver, to, p, sender)

    def deliver(self, to, p, sender):
        if to == "A":
            if self.aggregator:
                self.guard(self.aggregator.receive, p, sender)
        elif to in self.ranks:
            self.ranks[to].receive(p)

    # the group's way to each rank, and what must hold of it
    def cut_since(self, rank):
        """Since when nothing of the group reaches the rank; None if it does."""
        return min((begin for who, begin, end in self.c.cut
                    if who == rank and begin <= self.t < end), default=None)

    def delivered(self, members, hear):
        """A round's RESULT goes to the group for those who hear it, and to each other member."""
        if not self.c.group:
            return
        for rank, m in members.items():
            since = self.cut_since(rank)
            if rank in hear:
                self.cover["by group"] += 1
                if since is not None and self.t > since + self.c.group_bound:
                    raise Bug(f"rank {rank} gets results by a group that does not reach it")
            elif since is not None:
                self.cover["by unicast"] += 1
            else:
                self.cover["by unicast, but the group reaches it"] += 1
                works = max([m.group_since] + [end for who, _, end in self.c.cut
                                               if who == rank and end <= self.t])
                if self.t > works + self.c.group_bound:
                    raise Bug(f"rank {rank} gets results by unicast, but the group reaches it")

    def came(self, rank, via):
        since = self.cut_since(rank)
        if since is None or via != "repair":
            return
        self.repaired[rank, since] += 1
        most = 20 * self.c.streams * self.c.history
        if self.c.loses_nothing and self.repaired[rank, since] > most:
            raise Bug(f"rank {rank} asks for too many results")
