"""The aggregator's engine: rules 12 to 15, 18 to 20, 22 and 24 to 26 of docs/protocol.md."""
from basics import INF, T_BEACON, T_DEAD, T_FORM, T_KEEPALIVE, TICK, Bug, Packet
from ops import SUMS, Result


class AggregatorStream:
    def __init__(self, ranks):
        self.round, self.first, self.resumed = 0, True, False  # the running round
        self.op = self.desc = self.sums = self.place = self.opened_by = None
        self.loads = [()] * ranks  # of each rank: the values that are not summed yet
        self.after = [None] * ranks
        self.got = set()  # the ranks that have contributed to this round
        self.pos, self.results = [0] * ranks, {}
        self.front = 0  # below it some rank has applied everything
        self.sync = None  # rank -> round applied, while the stream resynchronises


class Member:
    def __init__(self, join, token, now):
        self.nonce, self.serial, self.token, self.alive_at = join.nonce, join.serial, token, now
        self.keepalive, self.heard, self.left = 0, False, False
        self.group, self.group_since = "new", now  # whether it hears the group


class Aggregator:
    def __init__(self, sim, incarnation):
        self.sim, self.c, self.incarnation = sim, sim.c, incarnation
        self.serial = self.mark = 0
        self.state, self.joined, self.forming_since = "forming", {}, None
        self.tokens, self.tombstones, self.ended = {}, {}, set()
        self.retiring = self.sent_away = False
        sim.at(5 * TICK, self.tick)

    def send(self, to, kind, **fields):
        self.sim.send("A", to, Packet(kind=kind, **fields))

    def broken(self, rule):
        return rule in self.c.broken

    # membership
    def on_HELLO(self, p):
        self.serial += 1
        self.send(p.rank, "CHALLENGE", nonce=p.nonce, incarnation=self.incarnation,
                  serial=self.serial)

    def on_JOIN(self, p):
        rank = p.rank
        if p.incarnation != self.incarnation:
            return
        if self.state == "active" and not self.leaves_room_for(p):
            return
        if p.serial <= self.mark and not self.broken("stale_join"):
            return
        if p.generation in self.ended or p.nonce in self.ended:
            return self.send(rank, "ABORT", generation=p.generation, nonce=p.nonce,
                             why="the generation has ended")
        newer = rank in self.joined and p.serial < self.joined[rank].serial
        if newer and not self.broken("stale_join"):
            return
        self.joined[rank] = p
        if self.forming_since is None:
            self.forming_since = self.sim.t
        progressed = self.reject_contradictions()
        if len(self.joined) == self.c.ranks:
            self.form(progressed)
        elif rank in self.joined:
            self.send(rank, "PENDING", nonce=p.nonce, serial=p.serial)

    def leaves_room_for(self, p):
        """A JOIN while the job is active: whether the active job has ended for it."""
        m = self.members[p.rank]
        if m.nonce == p.nonce:
            self.welcome(p.rank)
            return False
        if p.serial <= m.serial:
            return False
        same = p.generation is not None and p.generation == self.generation
        fresh = not self.resumed and not m.heard and (p.generation is None or p.no_progress)
        if same or fresh:
            m.nonce, m.serial, m.group, m.group_since = p.nonce, p.serial, "new", self.sim.t
            self.sim.cover["bound again"] += 1
            self.welcome(p.rank)
            return False
        if m.heard:
            self.abort(f"rank {p.rank} started anew")
        else:
            self.sim.cover["abandoned for a contender"] += 1
            self.abandon()
        return True

    def reject_contradictions(self):
        """Rule 18. Returns the joins that have progress."""
        counts = not self.broken("no_progress_counts")
        progressed = [j for j in self.joined.values()
                      if j.generation is not None and not (j.no_progress and counts)]
        generations = {j.generation for j in progressed}
        odd = any(j.generation not in generations for j in self.joined.values())
        if progressed and (odd or len(generations) > 1):
            for j in progressed:
                self.ended.add(j.generation)
                del self.joined[j.rank]
                self.send(j.rank, "ABORT", generation=j.generation, nonce=None,
                          why="a rank started anew")
        return progressed

    def form(self, progressed):
        now = self.sim.t
        self.resumed = bool(progressed)
        self.generation = progressed[0].generation if progressed else self.sim.unique()
        self.epoch, self.mark, self.state = self.sim.unique(), self.serial, "active"
        self.members = {rank: Member(j, self.sim.unique(), now) for rank, j in self.joined.items()}
        self.tokens = {m.token: rank for rank, m in self.members.items()}
        self.joined, self.forming_since = {}, None
        self.beacons, self.beacon_at, self.beacon_due = 0, now, INF
        if self.c.group:
            self.ask_for_beacon()
        self.streams = [AggregatorStream(self.c.ranks) for _ in range(self.c.streams)]
        if self.resumed:
            for x in self.streams:
                x.sync = {}
        for rank in range(self.c.ranks):
            self.welcome(rank)

    def welcome(self, rank):
        m = self.members[rank]
        self.send(rank, "WELCOME", nonce=m.nonce, incarnation=self.incarnation, token=m.token,
                  generation=self.generation, epoch=self.epoch, resume=self.resumed)

    def abort(self, why):
        self.end("ABORT")
        self.ended |= {self.generation}
        if not self.broken("nonces_outlive"):
            self.ended |= {m.nonce for m in self.members.values()}
        for rank, m in self.members.items():
            if not m.left:
                self.send(rank, "ABORT", generation=self.generation, nonce=None, why=why)

    def abandon(self):
        """As if this process had been killed: nothing has ended, and the ranks join again."""
        self.tokens, self.state, self.joined, self.forming_since = {}, "forming", {}, None
        self.mark = self.serial

    def end(self, how):
        if not self.broken("no_tombstone"):
            for token in self.tokens:
                self.tombstones[token] = (how, self.generation)
        self.abandon()

    def tick(self):
        if self.sim.aggregator is not self:
            return
        self.sim.at(5 * TICK, self.sim.guard, self.tick)
        if self.retiring:
            return
        now = self.sim.t
        if self.state == "active":
            if self.is_misled():
                return self.abandon()
            for rank, m in self.members.items():
                if not m.left and now - m.alive_at > T_DEAD:
                    return self.abort(f"rank {rank} is silent")
        elif self.forming_since is not None and now - self.forming_since > T_FORM:
            absent = sorted(set(range(self.c.ranks)) - set(self.joined))
            joined = list(self.joined.values())
            self.joined, self.forming_since, self.mark = {}, None, self.serial
            for j in joined:
                self.ended |= {j.generation, j.nonce} - {None}
                self.send(j.rank, "ABORT", generation=j.generation, nonce=j.nonce,
                          why=f"ranks {absent} never came")

    def is_misled(self):
        """A standby may form a job with a JOIN whose rank has gone elsewhere. The model has one
        address, so some formations with a member that was never heard end at random."""
        unheard = any(not m.heard for m in self.members.values())
        if not unheard or self.sim.t >= self.c.faults_until \
                or self.sim.rng.random() >= self.c.abandon:
            return False
        some = any(m.heard for m in self.members.values())
        what = ("resumed" if self.resumed else "new") + (", some heard" if some else "")
        self.sim.cover["abandoned " + what] += 1
        return True

    def receive(self, p, sender):
        if p.kind in ("HELLO", "JOIN"):
            if not self.retiring:
                getattr(self, "on_" + p.kind)(p)
            return
        rank = self.tokens.get(p.token)
        if rank is None:
            return self.answer_unknown(p, sender)
        m = self.members[rank]
        m.heard = True
        if self.broken("any_packet_is_life"):
            m.alive_at = self.sim.t
        if p.kind == "KEEPALIVE":
            self.on_keepalive(rank, m, p)
        elif p.kind == "LEAVE":
            self.on_leave(rank, m)
        else:
            getattr(self, "on_" + p.kind)(rank, self.streams[p.stream], p.stream, p)

    def answer_unknown(self, p, sender):
        if p.token in self.tombstones:
            how, generation = self.tombstones[p.token]
            self.send(sender, how, token=p.token, generation=generation, nonce=None,
                      why="said again")
        elif p.kind == "KEEPALIVE":
            self.send(sender, "REFUSED", token=p.token, number=p.number)

    def on_keepalive(self, rank, m, p):
        if self.retiring and not any(member.left for member in self.members.values()):
            self.sim.cover["sent away"] += 1
            if self.broken("retiring_aborts"):
                return self.abort("the aggregator retires")
            if p.number > m.keepalive:
                self.sent_away = True
                self.send(rank, "REFUSED", token=p.token, number=p.number)
            return
        if p.number > m.keepalive:
            m.keepalive, m.alive_at = p.number, self.sim.t
            if self.c.group:
                self.judge(m, p.heard)
        self.send(rank, "KEEPALIVE_ACK", number=p.number, epoch=self.epoch)

    def on_leave(self, rank, m):
        if self.sent_away:
            return  # so that all ranks meet at the next aggregator
        if not m.left:
            behind = [(s, v) for s, x in enumerate(self.streams) for v, o in self.members.items()
                      if not o.left and (x.sync is not None or x.pos[v] < self.must_reach(x))]
            if behind:  # one of them may still need what this rank keeps
                for s, v in behind:
                    self.send(v, "POLL", stream=s, epoch=self.epoch)
                return
            m.left = True
        self.send(rank, "LEFT", token=m.token)
        if all(other.left for other in self.members.values()):
            self.end("LEFT")
        elif any(x.got and x.first or not x.first for x in self.streams):
            self.abort(f"rank {rank} left")

    def must_reach(self, x):
        return x.round if self.broken("left_before_front") else max(x.round, x.front)

    # the group
    def ask_for_beacon(self):
        due = max(self.sim.t, self.beacon_at + T_BEACON)
        if due < self.beacon_due:
            self.beacon_due = due
            self.sim.at(due - self.sim.t, self.sim.guard, self.send_beacon, self.epoch, due)

    def send_beacon(self, epoch, due):
        current = self.sim.aggregator is self and self.state == "active"
        if not current or (self.epoch, self.beacon_due) != (epoch, due):
            return
        self.beacons, self.beacon_at = self.beacons + 1, self.sim.t
        self.beacon_due = self.sim.t + T_KEEPALIVE
        self.sim.at(T_KEEPALIVE, self.sim.guard, self.send_beacon, epoch, self.beacon_due)
        self.send("group", "BEACON", number=self.beacons, epoch=epoch)

    def judge(self, m, heard):
        """Whether a member hears the group, after its KEEPALIVE that tells a BEACON."""
        before, last = m.group, self.beacons
        if heard > last and not self.c.broken:
            raise Bug("a rank heard a beacon that was never sent")
        if heard and (heard >= last - 1 or self.broken("hears_for_ever")):
            m.group = "group_reachable"
        elif heard < last - 3 and not self.broken("never_unreached"):
            m.group = "does not hear"
        if m.group != before:
            m.group_since = self.sim.t
            self.sim.cover[f"{before}, now {m.group}"] += 1
        if heard < max(last, 1) and m.group != "does not hear":
            self.ask_for_beacon()

    def deliver(self, s, result, lag):
        hear = {rank for rank, m in self.members.items() if m.group == "group_reachable"}
        self.sim.delivered(self.members, hear)
        fields = {"stream": s, "epoch": self.epoch, "result": result, "lag": lag}
        if hear:
            self.send("group", "RESULT", via="group", **fields)
        for rank in range(self.c.ranks):
            if rank not in hear and not self.broken("group_only"):
                self.send(rank, "RESULT", via="own", **fields)

    # the data path
    def acknowledge(self, x, rank, pos):
        if pos > x.round:
            raise Bug("a rank acknowledges a round that is not finished")
        if pos > x.pos[rank]:
            x.pos[rank], self.members[rank].alive_at = pos, self.sim.t

    def is_of_running_round(self, x, rank, r):
        if self.broken("version_bit"):
            return r % 2 == x.round % 2
        if self.broken("stale_is_fresh"):
            return r <= x.round and rank not in x.got
        return r == x.round

    def on_DATA(self, rank, x, s, p):
        if x.sync is not None:
            raise Bug("DATA on a stream that is not synchronised")
        if p.round > x.round and not self.c.broken:
            raise Bug("DATA of a future round")
        self.acknowledge(x, rank, min(p.round, x.round))
        if not self.is_of_running_round(x, rank, p.round):
            if p.ask and p.round == x.pos[rank]:
                self.answer(x, s, rank, p.round, ())
        elif rank in x.got and not self.broken("count_twice"):
            if p.ask:
                self.status(x, s, rank)
        elif not self.take(rank, x, p):
            return
        self.try_finish(x, s)

    def take(self, rank, x, p):
        """False: the job has ended."""
        if x.first and any(m.left for m in self.members.values()):
            self.abort("a rank left")
            return False
        if x.op is None and (x.first or x.resumed):
            x.op, x.desc, x.place, x.first, x.opened_by = p.op, p.desc, p.place, p.first, rank
            x.sums = SUMS[p.desc[0]](self.c, self.sim.rng, self.sim.cover)
        elif (x.op, x.desc) != (p.op, p.desc) and not self.broken("no_descriptor_check"):
            self.abort(f"ranks {x.opened_by} and {rank} disagree: {x.op} {x.desc}, {p.op} {p.desc}")
            return False
        if not self.c.broken:
            if rank not in self.contributors(x):
                raise Bug("a contribution that nobody asked for")
            if (p.place, p.first) != (x.place, x.first):
                raise Bug(f"DATA does not fit the running round {x.round}")
        x.sums.take(x, rank, p)
        x.got.add(rank)
        self.members[rank].alive_at = self.sim.t
        return True

    def contributors(self, x):
        """The ranks that have still to contribute to the running round."""
        first = x.first and not self.broken("skip_first_round")
        resumed = x.resumed and not self.broken("resumed_is_not_opening")
        if x.op is None or first or resumed:
            return set(range(self.c.ranks)) - x.got
        return x.sums.owners(x) - x.got

    def awaited(self, x):
        awaited = self.contributors(x)
        if not self.broken("no_ack_bound"):
            awaited |= {v for v, pos in enumerate(x.pos) if pos < x.round - self.c.history + 1}
        return awaited

    def try_finish(self, x, s):
        while x.sync is None and x.op is not None and not self.awaited(x):
            self.finish(x, s)

    def finish(self, x, s):
        load, place, rejected = x.sums.sums(x)
        result = Result(x.round, x.op, load, place, rejected)
        lag = x.round - min(x.pos)
        x.results[x.round % self.c.history] = (result, lag)
        x.first = x.sums.is_end(place)
        x.round, x.got, x.resumed, x.place = x.round + 1, set(), False, place
        if x.first:
            x.op = x.desc = x.sums = x.place = None
            x.loads, x.after = [()] * self.c.ranks, [None] * self.c.ranks
        self.deliver(s, result, lag)

    def answer(self, x, s, rank, r, have):
        """A rank asks from its position r on: it gets what is finished, or who is awaited."""
        if r == x.round:
            return self.status(x, s, rank)
        for q in range(r, x.round):
            if q in have:
                continue
            result, lag = x.results.get(q % self.c.history, (None, 0))
            if result is None or result.round != q and not self.c.broken:
                raise Bug(f"the history lacks {q} at {x.round}")
            to = "group" if self.broken("repairs_by_group") else rank
            self.send(to, "RESULT", stream=s, epoch=self.epoch, result=result, lag=lag,
                      via="repair")

    def status(self, x, s, rank):
        live = x.sync is None
        self.send(rank, "STATUS", stream=s, round=x.round, live=live, epoch=self.epoch,
                  awaited=self.awaited(x) if live else set())

    def on_PROBE(self, rank, x, s, p):
        if x.sync is not None:
            raise Bug("PROBE on a stream that is not synchronised")
        self.acknowledge(x, rank, p.round)
        self.try_finish(x, s)
        if p.round == x.pos[rank]:
            self.answer(x, s, rank, p.round, p.have)

    def on_ACK(self, rank, x, s, p):
        if x.sync is None:
            self.acknowledge(x, rank, p.round)
            self.try_finish(x, s)

    # resynchronisation
    def on_SYNC(self, rank, x, s, p):
        if x.sync is None or rank in x.sync:
            return self.status(x, s, rank)
        x.sync[rank] = p.applied
        self.members[rank].alive_at = self.sim.t
        if len(x.sync) < self.c.ranks:
            return self.status(x, s, rank)
        applied, x.sync = x.sync.values(), None
        lowest, x.front = min(applied), max(applied)
        if x.front - lowest > self.c.history:
            raise Bug("ranks are further apart than the history")
        self.sim.cover["streams resumed"] += 1
        self.sim.cover[f"rounds replayed: {x.front - lowest}"] += 1
        x.round = x.front if self.broken("resume_at_front") else lowest
        x.pos, x.resumed = [x.round] * self.c.ranks, True
        for v in range(self.c.ranks):
            self.status(x, s, v)
