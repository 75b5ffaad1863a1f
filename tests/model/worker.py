"""A rank's engine: rules 7 to 11, 16, 17, 21, 23 and 24 of docs/protocol.md."""
from basics import (INF, JOIN_RTO, RTO, RTO_CAP, T_DEAD, T_FORM, T_KEEPALIVE, T_SILENT, TICK, Bug,
                    Packet)


class WorkerStream:
    def __init__(self):
        self.pos = self.applied = 0  # the round awaited; below `applied` it is one that is replayed
        self.next_op = 0  # the op that runs, or the next one that will
        self.syncing = self.held = self.resumed = False
        self.mine = None  # Contribution to the round `applied`, while an op runs
        self.kept = {}  # round -> Contribution, to rounds whose result some rank may lack
        self.results = {}  # round -> Result applied: replayed ones must be the same (a check only)
        self.early = {}  # round -> Result that came before its turn
        self.told = 0  # the position last acknowledged
        self.asked_at = -1  # the position at which a gap was reported
        self.rto, self.due = RTO, INF


class Worker:
    def __init__(self, sim, rank, caller):
        self.sim, self.c, self.rank, self.caller = sim, sim.c, rank, caller
        self.state, self.leaving = "out", False
        sim.at(sim.rng.uniform(0, TICK), self.tick)

    def send(self, kind, **fields):
        self.sim.send(self.rank, "A", Packet(kind=kind, token=self.token, **fields))

    def broken(self, rule):
        return rule in self.c.broken

    # membership
    def join(self):
        self.generation = self.token = self.epoch = None
        self.ops, self.streams = [], [WorkerStream() for _ in range(self.c.streams)]
        self.leaving, self.heard_at, self.beacon = False, self.sim.t, 0
        self.begin_join()

    def begin_join(self):
        """The state is kept; nothing is applied or sent until WELCOME."""
        self.joins_since = self.join_due = self.sim.t
        self.state, self.serial, self.incarnation = "joining", -1, None
        self.nonce = self.sim.unique()

    def joins_by(self, p):
        return self.state == "joining" and p.nonce == self.nonce

    def on_CHALLENGE(self, p):
        if self.joins_by(p):
            self.incarnation = p.incarnation
            self.sim.send(self.rank, "A", Packet(
                kind="JOIN", rank=self.rank, nonce=self.nonce, incarnation=p.incarnation,
                serial=p.serial, generation=self.generation,
                no_progress=all(x.applied == 0 for x in self.streams)))

    def on_PENDING(self, p):
        if self.joins_by(p) and p.serial > self.serial:
            self.serial, self.heard_at = p.serial, self.sim.t

    def on_WELCOME(self, p):
        if not self.joins_by(p):
            return
        if p.incarnation != self.incarnation and not self.broken("any_welcome"):
            return
        now = self.sim.t
        self.state, self.heard_at, self.leave_due = "in", now, now
        self.keepalive_due = now + T_KEEPALIVE
        if p.epoch != self.epoch or self.broken("numbers_start_again"):
            self.keepalives = self.acknowledged = 0
        self.token, self.generation = p.token, p.generation
        if p.epoch == self.epoch:  # nothing was lost
            for s in range(self.c.streams):
                self.advance(s)
            return
        self.epoch, self.keepalive_at = p.epoch, -INF
        if not self.broken("beacon_of_any_epoch"):
            self.beacon = 0
        for s, x in enumerate(self.streams):
            x.rto, x.held, x.asked_at, x.resumed, x.early = RTO, False, -1, False, {}
            if p.resume:
                x.syncing = True
                self.send_sync(s)
            elif x.applied:
                raise Bug("a rank with progress was welcomed as a new one")
            else:
                x.next_op, x.syncing, x.told, x.mine, x.kept = 0, False, 0, None, {}
                self.advance(s)

    def on_REFUSED(self, p):
        if self.state == "in" and p.token == self.token and p.number > self.acknowledged:
            self.begin_join()

    def on_ABORT(self, p):
        mine = p.generation is not None and p.generation == self.generation
        if self.state in ("in", "joining") and (mine or p.nonce == self.nonce):
            self.fail(p.why)

    def on_LEFT(self, p):
        if self.leaving and p.token == self.token:
            self.gone()

    def gone(self):
        self.state = "gone"
        if self.sim.ranks.get(self.rank) is self:
            del self.sim.ranks[self.rank]

    def fail(self, why):
        self.state = "out"
        pending = [op for op in self.ops if op.outcome is None]
        for op in pending:
            op.outcome = "error"
        self.sim.at(0, self.caller.failed, self, pending, why)

    def leave(self):
        if self.broken("leave_at_once"):
            return self.gone()
        self.leaving, self.leave_due = True, self.sim.t

    # timers
    def tick(self):
        now = self.sim.t
        if self.state == "gone" or self.sim.ranks.get(self.rank) is not self:
            return
        self.sim.at(TICK, self.tick)
        if self.state == "out":
            return
        joining = self.state == "joining"
        if now - self.heard_at > T_SILENT or joining and now - self.joins_since > T_FORM + T_DEAD:
            return self.fail("the aggregator is silent")
        if joining:
            if now >= self.join_due:
                self.join_due = now + JOIN_RTO
                self.sim.send(self.rank, "A", Packet(kind="HELLO", rank=self.rank,
                                                     nonce=self.nonce))
            return
        busy = any(x.mine or x.syncing for x in self.streams)
        late = any(now >= x.due for x in self.streams) and now >= self.keepalive_at + RTO
        if (now >= self.keepalive_due or late) and (busy or not self.broken("no_idle_keepalive")):
            self.keep_alive()
        if self.leaving and now >= self.leave_due:
            self.leave_due = now + JOIN_RTO
            self.send("LEAVE")
        for s, x in enumerate(self.streams):
            if now >= x.due:
                self.expire(s, x)

    def expire(self, s, x):
        if x.syncing:
            self.send_sync(s)
        elif self.owes(x) and not x.held and not self.c.probe_first:
            self.send_data(s, ask=True)
        else:
            self.probe(s)
        x.rto = min(2 * x.rto, RTO_CAP)
        x.due = self.sim.t + x.rto

    def keep_alive(self):
        self.keepalive_due, self.keepalive_at = self.sim.t + T_KEEPALIVE, self.sim.t
        self.keepalives += 1
        self.send("KEEPALIVE", number=self.keepalives, heard=self.beacon)

    def on_KEEPALIVE_ACK(self, p):
        if p.epoch == self.epoch and self.state == "in" and p.number > self.acknowledged:
            self.acknowledged, self.heard_at = p.number, self.sim.t

    def on_BEACON(self, p):
        known = p.epoch == self.epoch or self.broken("beacon_of_any_epoch")
        if known and self.state == "in" and p.number > self.beacon:
            news = not self.beacon or self.beacon < p.number - 3  # it may think that we do not hear
            self.beacon = p.number
            if news:
                self.keep_alive()

    # the data path
    def submit(self, op):
        op.no = len(self.ops)
        self.ops.append(op)
        if self.state == "out":
            return self.fail("not a member")
        if not op.streams_left:  # only without a first stream
            op.outcome = "ok"
            return self.sim.at(0, self.caller.finished, self, op)
        for s, x in enumerate(self.streams):
            if not x.mine:
                self.advance(s)

    def contribution(self, x):
        return x.kept.get(x.pos) if x.pos < x.applied else x.mine

    def owes(self, x):
        mine = self.contribution(x)
        return mine is not None and (mine.owes or x.resumed)

    def send_data(self, s, ask):
        x = self.streams[s]
        mine = self.contribution(x)
        if x.resumed and self.broken("resume_with_new_run") and not mine.first:
            op = self.ops[mine.op]
            mine = op.cut_anew(s, mine) if op.outcome is None else mine
        self.send("DATA", stream=s, round=x.pos, ask=ask, op=mine.op, desc=mine.desc,
                  first=mine.first, place=mine.place, load=mine.load, after=mine.after)
        x.told = x.pos

    def send_sync(self, s):
        x = self.streams[s]
        self.send("SYNC", stream=s, applied=x.applied)
        x.due = self.sim.t + x.rto

    def probe(self, s):
        x = self.streams[s]
        self.send("PROBE", stream=s, round=x.pos, have=frozenset(x.early))
        x.told = x.pos

    def acknowledge(self, s):
        x = self.streams[s]
        self.send("ACK", stream=s, round=x.pos)
        x.told = x.pos

    def advance(self, s):
        """Does what the position asks for: begins an op, sends, acknowledges, or rests."""
        x = self.streams[s]
        if x.syncing and not self.broken("start_in_sync") or self.state != "in":
            return
        if x.pos == x.applied and not x.mine:
            while x.next_op < len(self.ops) and not self.ops[x.next_op].uses(s):
                x.next_op += 1
            if x.next_op == len(self.ops):
                x.due = INF  # idle: nobody can pass this rank, so it needs no timer
                return
            x.mine, x.held = self.ops[x.next_op].begin(s), False
        if self.owes(x):
            self.send_data(s, ask=False)
        elif x.pos - x.told >= max(1, self.c.history // 2):
            self.acknowledge(s)
        x.due = self.sim.t + x.rto

    def on_RESULT(self, p):
        if p.epoch != self.epoch and not self.broken("no_epoch"):
            return
        if self.state != "in" and not self.broken("thaw_joining"):
            return  # what JOIN and SYNC say must stay true
        s, result = p.stream, p.result
        x, history, r = self.streams[s], self.c.history, result.round
        if x.syncing:
            raise Bug("a result before all ranks have told what they applied")
        if r < x.pos:
            if self.broken("reapply_stale") and x.mine:
                for i, value in result.load:
                    if i < self.ops[x.next_op].length:
                        self.ops[x.next_op].result[i] = value
            return
        if r >= x.pos + history and not self.c.broken:
            raise Bug("a result beyond the bound of the history")
        if x.early.get(r) is None:
            self.sim.came(self.rank, p.via)
        lowest = min(r - p.lag, x.pos)  # every rank has applied the results below it
        lowest = x.pos if self.broken("dropped_early") else lowest
        lowest = max(lowest, x.applied - history + 2) if self.broken("one_less_kept") else lowest
        x.kept = {q: mine for q, mine in x.kept.items() if q >= lowest}
        if r > x.pos and self.broken("jump_gap"):
            x.pos = r
        if r > x.pos:
            x.early[r] = result
            if x.asked_at != x.pos:
                x.asked_at = x.pos
                self.probe(s)
            return
        self.heard_at = self.sim.t
        self.take(s, x, result)
        while x.pos in x.early:
            self.take(s, x, x.early.pop(x.pos))
        if len(x.kept) > history + 1:
            raise Bug("more contributions are kept than a resumed stream may need")
        x.rto, x.held = RTO, False
        self.advance(s)

    def take(self, s, x, result):
        """The result of the round awaited: one that is replayed is not applied again."""
        if x.pos < x.applied:
            if x.results[x.pos] != result:
                raise Bug("a replayed round has another result")
            if self.broken("reapply_replayed"):
                self.apply(s, x, result)
        else:
            self.apply(s, x, result)
        x.pos += 1
        x.applied = max(x.applied, x.pos)
        x.resumed = False

    def apply(self, s, x, result):
        if not x.mine or result.op != x.next_op:
            raise Bug(f"a result of op {result.op} during op {x.next_op}")
        op = self.ops[x.next_op]
        if op.outcome:
            raise Bug("a write into memory that is the caller's again")
        x.results[result.round], x.kept[result.round] = result, x.mine
        x.mine = op.apply(s, x.mine, result)
        if x.mine is None:
            x.next_op += 1
            op.streams_left -= 1
            if not op.streams_left:
                op.outcome = "ok"
                self.caller.finished(self, op)

    def on_STATUS(self, p):
        if p.epoch != self.epoch or not p.live or self.state != "in":
            return
        s, running = p.stream, p.round
        x = self.streams[s]
        if x.syncing:
            if running > x.applied or running < x.applied and running not in x.kept:
                raise Bug(f"resumes with round {running}, which is not kept:"
                          f" {sorted(x.kept)}, {x.applied}")
            x.syncing, x.rto, x.pos, x.told, x.resumed = False, RTO, running, running, True
            self.advance(s)
        elif self.contribution(x) is not None and running == x.pos:
            if self.rank not in p.awaited:
                x.held = True  # the aggregator has our contribution: ask, do not resend
            elif self.owes(x):
                self.send_data(s, ask=False)
            else:
                self.acknowledge(s)

    def on_POLL(self, p):
        if p.epoch == self.epoch and self.state == "in" and not self.streams[p.stream].syncing:
            self.acknowledge(p.stream)

    def receive(self, p):
        if self.state not in ("gone", "out"):
            getattr(self, "on_" + p.kind)(p)
