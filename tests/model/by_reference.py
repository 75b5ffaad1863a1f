#!/usr/bin/env python3
"""Executable model of Sluice's protocol: one job, N workers, one aggregator, a hostile network.

Theory of operation
-------------------
Everything runs in virtual time from one seed.  `Sim` is the network, the clock and the reaper: it drops,
duplicates, delays and reorders packets, re-delivers very old ones (earlier rounds, ops, sessions and
incarnations), kills the aggregator between any two of its sends (so that a result reaches only some
workers) and kills workers.  `Aggregator` and `Worker` are engines: packets and time in, packets and
completions out.  `App` is the caller: it submits in-place ops, checks every result against the
rank-ordered reference sum and then scribbles over the tensor, because it belongs to the caller again.

Positions.  `pos` of a worker on a stream is the round it awaits: it has applied all results < pos, in
order.  Every upstream packet carries pos, so it is the cumulative acknowledgement.  The aggregator's
running round is R; finishing R evicts result R-H, hence the one bound everything rests on:
        finish R  only if  pos[w] >= R-H+1 for every w.
From it follow: all live positions lie within H rounds; the aggregator's ring answers any worker that is
behind; and a worker at the front keeps, in its ring of H received results, every result that any other
worker can still lack, so the tensors themselves are needed only for the running round.

Resynchronisation.  After a restart each worker sends, per stream, SYNC{pos, op, per column: cur, its own
first non-zero block >= cur (`at`) and > cur (`after`)}.  The front A = max pos is the round to run.  A
worker at A still owes round A, so its next is `at`; a worker behind A has had its last contribution
consumed by a finished round, so its next is `after`.  Results min pos .. A-1 are fetched, on demand, from
the ring of a worker at A.  Nothing else survives a crash, and nothing else is needed.

A block is a pair (int, float): the int finds lost, doubled and foreign contributions, the float finds
sums that are not in rank order.  Mutations (`--mut NAME`) break one rule each; the checks must find them.
"""
import argparse
import bisect
import collections
import heapq
import itertools
import random
import sys
import time

NONE = 1 << 60                       # "no further block"; larger than any index, so min() works
INF = float("inf")
RTO, RTO_CAP, JOIN_RTO = 6.0, 48.0, 10.0
T_KA, T_DEAD, T_FORM, T_AGG, TICK = 60.0, 1200.0, 2000.0, 4500.0, 3.0


class Bug(Exception):
    """A check failed."""


class Crash(Exception):
    """The aggregator is killed at this very send."""


def P(kind, **fields):
    fields["k"] = kind
    return fields


class Region:
    """What an aggregator's results lie in, for one epoch: every rank maps it, it alone writes."""

    def __init__(self, epoch):
        self.epoch, self.slots = epoch, {}

    def read(self, s, r, H):
        """The whole RESULT of a round, if it is there and was finished there."""
        slot = self.slots.get((s, r % H))
        return slot if slot and slot["round"] == r and slot["done"] else None


class Ref:
    """A block by reference: whoever reads it sees what lies there now."""

    def __init__(self, memory, i):
        self.memory, self.i = memory, i

    def read(self):
        return self.memory[self.i]


def add(a, b):
    return ((a[0] + b[0]) & (2**64 - 1), a[1] + b[1])


class Op:
    """One collective call as the worker sees it: an in-place tensor and the bitmap of non-zero blocks."""

    def __init__(self, no, data, tag, S, W, anchor=True):
        self.anchor = anchor
        self.no, self.t, self.L, self.S, self.W = no, list(data), len(data), S, W
        self.desc = (tag, self.L)
        self.nz = {}
        for i, b in enumerate(data):
            if b is not None:
                self.nz.setdefault(i % (S * W), []).append(i)
        self.left = sum(self.uses(s) for s in range(S))
        self.outcome = None

    def uses(self, s):               # stream 0 takes part in every op, so that descriptors always meet
        return s == 0 and self.anchor or s * self.W < self.L

    def first(self, s):
        return tuple(g if g < self.L else NONE for g in range(s * self.W, (s + 1) * self.W))

    def nxt(self, g, i, strict):     # own first non-zero block >= i (or > i) of global column g
        if i == NONE:
            return NONE
        v = self.nz.get(g, ())
        j = (bisect.bisect_right if strict else bisect.bisect_left)(v, i)
        return v[j] if j < len(v) else NONE


# ------------------------------------------------------------------------------------------- worker
class WStream:
    def __init__(self, W):
        self.pos = 0                 # round awaited
        self.nop = 0                 # op running here, or the next one to run
        self.run = self.first = self.sync = self.held = False
        self.cur = (NONE,) * W
        self.ring = {}               # round -> (op, want): results that came before their turn
        self.resumed = False         # the round awaited is one with which an aggregator took over
        self.slot = {}               # this rank's slot: blocks of a tensor outside the arena
        self.acked = 0               # pos last told
        self.gap = -1
        self.rto, self.due = RTO, INF


class Worker:
    def __init__(self, sim, rank, app):
        self.sim, self.c, self.rank, self.app = sim, sim.c, rank, app
        self.state, self.leaving = "out", False
        self.kaseq = 0
        sim.at(sim.rng.uniform(0, TICK), self.tick)

    def tx(self, kind, **f):
        self.sim.send(self.rank, "A", P(kind, tok=self.tok, **f))

    # membership
    def join(self):
        self.gen = self.tok = self.epoch = None
        self.ops, self.st, self.leaving = [], [WStream(self.c.W) for _ in range(self.c.S)], False
        self.regions = []
        self.heard = self.sim.t
        self.begin_join()

    def begin_join(self):
        self.jbegan = self.sim.t
        self.state, self.jdue, self.jserial, self.jinc = "joining", self.sim.t, -1, None
        self.wnonce = self.sim.unique()

    def on_CHAL(self, p):
        if self.state == "joining" and p["wnonce"] == self.wnonce:
            self.jinc = p["inc"]
            virgin = all(x.pos == 0 for x in self.st)   # no round ever finished: as good as new
            self.sim.send(self.rank, "A", P("JOIN", rank=self.rank, wnonce=self.wnonce, inc=p["inc"],
                                            serial=p["serial"], gen=self.gen, virgin=virgin))

    def on_PEND(self, p):
        if self.state == "joining" and p["wnonce"] == self.wnonce and p["serial"] > self.jserial:
            self.jserial, self.heard = p["serial"], self.sim.t

    def on_WELCOME(self, p):
        if self.state != "joining" or p["wnonce"] != self.wnonce or p["inc"] != self.jinc and \
                "any_welcome" not in self.c.mut:
            return
        self.state, self.heard, self.kadue, self.ldue = "in", self.sim.t, self.sim.t + T_KA, self.sim.t
        self.kaseq = self.kaack = 0
        self.tok, self.gen = p["tok"], p["gen"]
        if p["epoch"] == self.epoch:                    # the refusal was false: nothing was lost
            for s in range(self.c.S):
                self.advance(s)
            return
        self.epoch = p["epoch"]
        self.regions = [p["region"]] if not p["resume"] or "former_dropped_early" in self.c.mut else \
            self.regions + [p["region"]]
        self.sim.cover["regions%d" % len(self.regions)] += 1
        for s, x in enumerate(self.st):
            x.rto, x.held, x.gap, x.resumed = RTO, False, -1, False
            x.ring = {}
            if p["resume"]:
                x.sync = True
                self.send_sync(s)
            else:
                if x.pos:
                    raise Bug("progressed worker welcomed as new")
                x.run, x.nop, x.sync, x.acked = False, 0, False, 0
                self.advance(s)

    def on_NAK(self, p):
        if self.state == "in" and p["tok"] == self.tok:
            self.begin_join()                           # state is kept; sending stops until WELCOME

    def on_ABORT(self, p):
        if self.state in ("in", "joining") and (
                (p["gen"] is not None and p["gen"] == self.gen) or p["wnonce"] == self.wnonce):
            self.fail(p["why"])

    def on_LEFT(self, p):
        if self.leaving and p["tok"] == self.tok:
            self.gone()

    def gone(self):
        self.state = "gone"
        if self.sim.proc.get(self.rank) is self:
            del self.sim.proc[self.rank]

    def fail(self, why):
        self.state = "out"
        pend = [o for o in self.ops if o.outcome is None]
        for o in pend:
            o.outcome = "error"
        self.sim.at(0, self.app.failed, self, pend, why)

    def leave(self):
        if "leave_at_once" in self.c.mut:
            return self.gone()
        self.leaving, self.ldue = True, self.sim.t
        self.ltime = self.sim.t

    # timers
    def tick(self):
        now = self.sim.t
        if self.state == "gone" or self.sim.proc.get(self.rank) is not self:
            return
        self.sim.at(TICK, self.tick)
        if self.state == "out":
            return
        joining = self.state == "joining"
        if now - self.heard > T_AGG or joining and now - self.jbegan > T_FORM + T_DEAD:
            return self.fail("aggregator silent")
        if joining:
            if now >= self.jdue:
                self.jdue = now + JOIN_RTO
                self.sim.send(self.rank, "A", P("HELLO", rank=self.rank, wnonce=self.wnonce))
            return
        busy = any(x.run or x.sync for x in self.st)
        if now >= self.kadue and (busy or "no_idle_keepalive" not in self.c.mut):
            self.kadue = now + T_KA
            self.kaseq += 1
            self.tx("KA", n=self.kaseq)
        if self.leaving and now >= self.ldue:
            self.ldue = now + JOIN_RTO
            self.tx("LEAVE")
        for s, x in enumerate(self.st):
            if now >= x.due:
                if x.sync:
                    self.send_sync(s)
                elif self.owes(s) and not x.held and not self.c.probe_first:
                    self.send_data(s, ask=True)
                else:
                    self.probe(s)
                x.rto = min(2 * x.rto, RTO_CAP)
                x.due = now + x.rto

    # the data path
    def submit(self, op):
        op.no = len(self.ops)
        self.ops.append(op)
        if self.state == "out":
            return self.fail("not a member")
        if not op.left:                                 # only without the anchor
            op.outcome = "ok"
            return self.sim.at(0, self.app.finished, self, op)
        for s, x in enumerate(self.st):
            if not x.run:
                self.advance(s)

    def col(self, s, c):
        return s * self.c.W + c

    def owes(self, s):
        x = self.st[s]
        return x.run and (x.first or x.resumed or self.owns(s))

    def owns(self, s):
        x = self.st[s]
        op = self.ops[x.nop]
        return any(i != NONE and op.nxt(self.col(s, c), i, False) == i for c, i in enumerate(x.cur))

    def send_data(self, s, ask):
        x = self.st[s]
        op = self.ops[x.nop]
        nxt = tuple(op.nxt(self.col(s, c), i, True) for c, i in enumerate(x.cur))
        own = [i if i != NONE and op.nxt(self.col(s, c), i, False) == i else NONE for c, i in enumerate(x.cur)]
        memory = op.t
        if not op.arena:
            for c, i in enumerate(own):                 # one slot a stream: the former round has ended
                if i != NONE:
                    x.slot[c] = op.t[i]
            memory = x.slot
        blk = tuple(Ref(memory, i if op.arena else c) if i != NONE else None for c, i in enumerate(own))
        self.tx("DATA", s=s, r=x.pos, op=x.nop, desc=op.desc, first=x.first, opening=x.first or x.resumed, cur=x.cur,
                blk=blk, nxt=nxt, ask=ask)
        x.acked = x.pos
        if "slot_reused_by_worker" in self.c.mut and not op.arena:
            x.slot.update({c: op.t[i] for c, i in enumerate(nxt) if i != NONE})

    def send_sync(self, s):
        x = self.st[s]
        self.tx("SYNC", s=s, pos=x.pos)
        x.acked, x.due = x.pos, self.sim.t + x.rto

    def probe(self, s):
        x = self.st[s]
        have = frozenset(r for r in x.ring if r > x.pos)
        self.tx("PROBE", s=s, pos=x.pos, have=have)
        x.acked = x.pos

    def begin(self, s):
        x = self.st[s]
        while x.nop < len(self.ops) and not self.ops[x.nop].uses(s):
            x.nop += 1
        if x.nop == len(self.ops):
            return False
        x.run = x.first = True
        x.held = False
        x.cur = self.ops[x.nop].first(s)
        return True

    def advance(self, s):
        """Do what the position asks for: start an op, send, acknowledge, or rest."""
        x = self.st[s]
        if x.sync and "start_in_sync" not in self.c.mut or self.state != "in":
            return
        if not x.run and not self.begin(s):
            x.due = INF                                 # idle: nobody can pass us, no timer needed
            return
        if self.owes(s):
            self.send_data(s, ask=False)
        elif x.pos - x.acked >= max(1, self.c.H // 2):
            self.tx("ACK", s=s, pos=x.pos)
            x.acked = x.pos
        x.due = self.sim.t + x.rto

    def on_RESULT(self, p):
        if p["epoch"] != self.epoch and "no_epoch" not in self.c.mut:
            return
        if self.state != "in" and "thaw_joining" not in self.c.mut:
            return                                      # what JOIN and SYNC claim must stay true
        s, (r, opno, want) = p["s"], p["res"]
        x, H = self.st[s], self.c.H
        if x.sync and "applied_before_sync_ended" not in self.c.mut:
            return                                      # no round of this epoch can have ended
        if r < x.pos:
            return
        if r >= x.pos + H and not self.c.mut:
            raise Bug("result beyond the history bound")
        x.ring[r] = (opno, want)
        if r > x.pos:
            if x.gap != x.pos:
                x.gap = x.pos
                self.probe(s)
            return
        self.heard = self.sim.t
        while x.pos in x.ring:
            opno, want = x.ring.pop(x.pos)
            slot = self.regions[-1].read(s, x.pos, H)
            if slot is None or slot["want"] != want or slot["op"] != opno:
                raise Bug(f"slot of round {x.pos} is not there")
            self.apply(s, x, slot)
        if len(x.ring) > H:
            raise Bug("worker ring")
        x.rto, x.held = RTO, False
        self.advance(s)

    def apply(self, s, x, slot):
        if not x.run and not self.begin(s):
            raise Bug("result of an op that was not begun")
        opno, want = slot["op"], slot["want"]
        if opno != x.nop:
            raise Bug(f"result of op {opno} while at op {x.nop}")
        op = self.ops[x.nop]
        self.sim.useful["RESULT"] += 1
        for i, v in slot["blocks"]:
            if op.outcome:
                raise Bug("write into a tensor handed back")
            op.t[i] = v
        x.cur, x.first, x.resumed = want, False, False
        x.pos += 1
        if all(i == NONE for i in want):
            x.run, x.nop = False, x.nop + 1
            op.left -= 1
            if not op.left and op.outcome is None:
                op.outcome = "ok"
                self.app.finished(self, op)             # checks, then scribbles over the tensor

    def catch_up(self, s, front):
        """An aggregator took over at `front`: the rounds below it lie in former regions. The newest that has one is
        right: an older aggregator that lives on may have finished it, too, of what is not there any more."""
        x = self.st[s]
        former = self.regions[:-1]
        if "oldest_region_first" not in self.c.mut:
            former = former[::-1]
        while x.pos < front or "commit_word_only" in self.c.mut:
            slot = next((found for region in former if (found := region.read(s, x.pos, self.c.H))), None)
            if slot is None:
                if x.pos >= front:
                    break
                raise Bug(f"no region has round {x.pos}, front {front}")
            self.sim.cover["applied from a former region"] += 1
            self.apply(s, x, slot)

    def on_STATUS(self, p):
        if p["epoch"] != self.epoch or not p["live"] or self.state != "in":
            return
        s, R = p["s"], p["R"]
        x = self.st[s]
        if x.sync:
            if R < x.pos and not self.c.mut:
                raise Bug("resynchronised behind a worker")
            x.sync, x.rto = False, RTO
            self.catch_up(s, R)
            x.resumed = True
            if not any(y.sync for y in self.st):
                del self.regions[:-1]                   # nothing below any front is lacking here
            self.advance(s)
        elif x.run and R == x.pos:
            if self.rank not in p["wait"]:
                x.held = True                           # our contribution is in: probe, don't resend
            elif self.owes(s):
                self.send_data(s, ask=False)
            else:
                self.tx("ACK", s=s, pos=x.pos)

    def on_POLL(self, p):
        if p["epoch"] == self.epoch and self.state == "in" and not self.st[p["s"]].sync:
            self.tx("ACK", s=p["s"], pos=self.st[p["s"]].pos)

    def on_KAACK(self, p):
        if p["epoch"] == self.epoch and self.state == "in" and p["n"] > self.kaack:
            self.kaack, self.heard = p["n"], self.sim.t

    def receive(self, p, _src):
        if self.state != "gone" and (self.state != "out"):
            getattr(self, "on_" + p["k"])(p)


# --------------------------------------------------------------------------------------- aggregator
class AStream:
    def __init__(self, N):
        self.R, self.first, self.op, self.desc, self.cur = 0, True, None, None, None
        self.nxt, self.got, self.pos = [None] * N, {}, [0] * N
        self.hist = {}
        self.sync = None             # rank -> SYNC packet while resynchronising
        self.who = None
        self.opening = True          # of the running round: all contribute


class Aggregator:
    def __init__(self, sim, inc):
        self.sim, self.c, self.inc = sim, sim.c, inc
        self.serial = self.mark = 0
        self.state, self.joined, self.form_t = "forming", {}, None
        self.tok, self.tomb, self.dead_gens = {}, {}, set()
        sim.at(TICK * 5, self.tick)

    def tx(self, rank, kind, **f):
        self.sim.send("A", rank, P(kind, **f))

    # membership
    def on_HELLO(self, p):
        self.serial += 1
        self.tx(p["rank"], "CHAL", wnonce=p["wnonce"], inc=self.inc, serial=self.serial)

    def on_JOIN(self, p):
        rank = p["rank"]
        if p["inc"] != self.inc:
            return
        if self.state == "active":
            m = self.m[rank]
            if m["wnonce"] == p["wnonce"]:
                return self.welcome(rank)
            if p["serial"] <= m["serial"]:
                return
            same = p["gen"] is not None and p["gen"] == self.gen
            if same or (not self.resume and not m["spoke"] and (p["gen"] is None or p["virgin"])):
                m.update(wnonce=p["wnonce"], serial=p["serial"])
                return self.welcome(rank)
            self.abort(f"rank {rank} started anew")
        if p["serial"] <= self.mark and "stale_join" not in self.c.mut:
            return
        if p["gen"] in self.dead_gens or p["wnonce"] in self.dead_gens:
            return self.tx(rank, "ABORT", gen=p["gen"], wnonce=p["wnonce"], why="generation is over")
        if rank in self.joined and p["serial"] < self.joined[rank]["serial"] and "stale_join" not in self.c.mut:
            return
        self.joined[rank] = p
        if self.form_t is None:
            self.form_t = self.sim.t
        virgin_ok = "virgin_is_progressed" not in self.c.mut
        prog = [j for j in self.joined.values() if j["gen"] is not None and not (j["virgin"] and virgin_ok)]
        gens = {j["gen"] for j in prog}
        odd = [j for j in self.joined.values() if j["gen"] not in gens]
        if prog and (odd or len(gens) > 1):             # someone lost the state the others still hold
            for j in prog:
                self.dead_gens.add(j["gen"])
                del self.joined[j["rank"]]
                self.tx(j["rank"], "ABORT", gen=j["gen"], wnonce=None, why="a rank started anew")
        if len(self.joined) < self.c.N:
            if rank in self.joined:
                self.tx(rank, "PEND", wnonce=p["wnonce"], serial=p["serial"])
            return
        self.resume = bool(prog)
        self.gen = prog[0]["gen"] if prog else self.sim.unique()
        self.epoch, self.mark, self.state = self.sim.unique(), self.serial, "active"
        self.region = Region(self.epoch)
        self.m = {r: dict(wnonce=j["wnonce"], serial=j["serial"], tok=self.sim.unique(), seen=self.sim.t,
                          ka=0, spoke=False, left=False) for r, j in self.joined.items()}
        self.tok = {m["tok"]: r for r, m in self.m.items()}
        self.joined, self.form_t = {}, None
        self.st = [AStream(self.c.N) for _ in range(self.c.S)]
        if self.resume:
            for x in self.st:
                x.sync = {}
        for r in range(self.c.N):
            self.welcome(r)

    def welcome(self, r):
        m = self.m[r]
        self.tx(r, "WELCOME", wnonce=m["wnonce"], inc=self.inc, tok=m["tok"], gen=self.gen,
                epoch=self.epoch, resume=self.resume, region=self.region)

    def abort(self, why):
        self.end("ABORT")
        self.dead_gens |= {self.gen} | {m["wnonce"] for m in self.m.values()}
        if "nonce_not_dead" in self.c.mut:
            self.dead_gens = {self.gen}
        for r in range(self.c.N):
            if not self.m[r]["left"]:
                self.tx(r, "ABORT", gen=self.gen, wnonce=None, why=why)

    def end(self, how):
        if "no_tombstone" not in self.c.mut:
            for t in self.tok:
                self.tomb[t] = (how, self.gen)
        self.tok, self.state, self.joined, self.form_t = {}, "forming", {}, None
        self.mark = self.serial

    def tick(self):
        if self.sim.agg is not self:
            return
        self.sim.at(TICK * 5, self.sim.guard, self.tick)
        now = self.sim.t
        if self.state == "active":
            for r, m in self.m.items():
                if not m["left"] and now - m["seen"] > T_DEAD:
                    return self.abort(f"rank {r} is silent")
        elif self.form_t is not None and now - self.form_t > T_FORM:
            gone = sorted(set(range(self.c.N)) - set(self.joined))
            js, self.joined, self.form_t, self.mark = list(self.joined.values()), {}, None, self.serial
            for j in js:
                self.dead_gens |= {j["gen"], j["wnonce"]} - {None}
                self.tx(j["rank"], "ABORT", gen=j["gen"], wnonce=j["wnonce"], why=f"ranks {gone} never came")

    def receive(self, p, src):
        if p["k"] in ("HELLO", "JOIN"):
            return getattr(self, "on_" + p["k"])(p)
        w = self.tok.get(p["tok"])
        if w is None:
            how, gen = self.tomb.get(p["tok"], ("NAK", None))
            return self.tx(src, how, tok=p["tok"], gen=gen, wnonce=None, why="told again")
        m = self.m[w]
        m["spoke"] = True
        if "any_packet_is_life" in self.c.mut:
            m["seen"] = self.sim.t
        if p["k"] == "KA":
            if p["n"] > m["ka"]:
                m["ka"], m["seen"] = p["n"], self.sim.t
            self.tx(w, "KAACK", n=p["n"], epoch=self.epoch)
        elif p["k"] == "LEAVE":
            self.on_leave(w)
        else:
            getattr(self, "on_" + p["k"])(w, self.st[p["s"]], p["s"], p)

    def on_leave(self, w):
        m = self.m[w]
        if not m["left"]:
            lag = [(s, v) for s, x in enumerate(self.st) for v in range(self.c.N)
                   if not self.m[v]["left"] and (x.sync is not None or x.pos[v] < x.R)]
            if lag:                                     # someone may still need what w retains
                for s, v in lag:
                    self.tx(v, "POLL", s=s, epoch=self.epoch)
                return
            m["left"] = True
        self.tx(w, "LEFT", tok=m["tok"])
        if all(v["left"] for v in self.m.values()):
            self.end("LEFT")
        elif any(x.got for x in self.st):
            self.abort(f"rank {w} left")

    # the data path
    def ack(self, x, w, pos):
        if pos > x.R:
            raise Bug("acknowledges a round that is not finished")
        if pos > x.pos[w]:
            x.pos[w], self.m[w]["seen"] = pos, self.sim.t

    def fresh(self, x, w, r):
        if "version_bit" in self.c.mut:
            return r % 2 == x.R % 2
        if "stale_is_fresh" in self.c.mut:
            return r <= x.R and w not in x.got
        return r == x.R

    def on_DATA(self, w, x, s, p):
        if x.sync is not None:
            raise Bug("DATA on a stream that is not synchronised")
        r = p["r"]
        if r > x.R and not self.c.mut:
            raise Bug("DATA of a future round")
        self.ack(x, w, min(r, x.R))
        if not self.fresh(x, w, r):
            if p["ask"] and r == x.pos[w]:
                self.answer(x, s, w, r, ())
        elif w in x.got and "count_twice" not in self.c.mut:
            if p["ask"]:
                self.status(x, s, w)
        else:
            if x.opening:
                if any(m["left"] for m in self.m.values()):
                    return self.abort("a rank left")
                if x.op is None:
                    x.op, x.desc, x.cur, x.who, x.first = p["op"], p["desc"], p["cur"], w, p["first"]
                elif (x.op, x.desc) != (p["op"], p["desc"]) and "no_desc_check" not in self.c.mut:
                    return self.abort(f"ranks {x.who},{w} disagree: op {x.op} {x.desc} / {p['op']} {p['desc']}")
            if not self.c.mut and (p["first"] != x.first or p["opening"] != x.opening or p["cur"] != x.cur or p["op"] != x.op):
                raise Bug(f"DATA does not fit the running round {r}")
            x.got[w] = p["blk"]
            x.nxt[w] = p["nxt"]
            self.m[w]["seen"] = self.sim.t
            self.sim.useful["DATA"] += 1
            if len(x.got) > self.c.N:
                raise Bug("held contributions")
        self.try_finish(x, s)

    def waiting(self, x):
        if x.opening and ("skip_first_round" not in self.c.mut or x.op is None):
            w = {v for v in range(self.c.N) if v not in x.got}
        else:
            w = {v for v in range(self.c.N) if v not in x.got and x.nxt[v] is not None
                 and any(i != NONE and n == i for n, i in zip(x.nxt[v], x.cur))}
        if "no_ack_bound" not in self.c.mut:
            w |= {v for v in range(self.c.N) if x.pos[v] < x.R - self.c.H + 1}
        return w

    def try_finish(self, x, s):
        if x.sync is not None or (x.opening and x.op is None) or self.waiting(x):
            return
        self.region.slots[s, x.R % self.c.H] = slot = dict(round=x.R, op=x.op, done="committed_first" in self.c.mut,
                                                         blocks=((0, (13, .13)),), want=x.cur)
        self.sim.write(self)                            # may die here: the slot is torn
        blocks = []
        for c, i in enumerate(x.cur):
            v = None
            for w in sorted(x.got):                     # rank order: bitwise the same, always
                b = x.got[w][c]
                if b is not None:
                    v = b.read() if v is None else add(v, b.read())
            if v is not None:
                blocks.append((i, v))
        known = [n for n in x.nxt if n is not None]
        want = tuple(min(n[c] for n in known) for c in range(self.c.W))
        slot.update(blocks=tuple(blocks), want=want)
        slot["done"] = True
        res = (x.R, x.op, want)
        x.hist[x.R % self.c.H] = res
        if len(x.hist) > self.c.H:
            raise Bug("aggregator history")
        x.R, x.got, x.cur, x.first = x.R + 1, {}, want, all(i == NONE for i in want)
        x.opening = x.first
        if x.first:
            x.op = x.desc = x.cur = None
            x.nxt = [None] * self.c.N
        for w in range(self.c.N):
            self.tx(w, "RESULT", s=s, epoch=self.epoch, res=res)

    def answer(self, x, s, w, r, have):
        """Worker w asks from position r: give it what is finished, or say who is waited for."""
        if r == x.R:
            return self.status(x, s, w)
        for q in range(r, x.R):
            if q not in have:
                res = x.hist.get(q % self.c.H)
                if res is None or (res[0] != q and not self.c.mut):
                    raise Bug(f"history lacks {q} at {x.R}")
                self.tx(w, "RESULT", s=s, epoch=self.epoch, res=res)

    def status(self, x, s, w):
        self.tx(w, "STATUS", s=s, R=x.R, live=x.sync is None, epoch=self.epoch,
                wait=() if x.sync is not None else tuple(self.waiting(x)))

    def on_PROBE(self, w, x, s, p):
        if x.sync is not None:
            raise Bug("PROBE on a stream that is not synchronised")
        self.ack(x, w, p["pos"])
        self.try_finish(x, s)
        if p["pos"] == x.pos[w]:
            self.answer(x, s, w, p["pos"], p["have"])

    def on_ACK(self, w, x, s, p):
        if x.sync is None:
            self.ack(x, w, p["pos"])
            self.try_finish(x, s)

    # resynchronisation
    def on_SYNC(self, w, x, s, p):
        if x.sync is None or w in x.sync:
            return self.status(x, s, w)
        x.sync[w] = p
        self.m[w]["seen"] = self.sim.t
        if len(x.sync) < self.c.N:
            return self.status(x, s, w)
        sync, x.sync = x.sync, None
        A, low = max(q["pos"] for q in sync.values()), min(q["pos"] for q in sync.values())
        if "resync_at_min" in self.c.mut:
            A = low
        if A - low > self.c.H:
            raise Bug("workers further apart than H")
        cov = self.sim.cover
        cov["resync"] += 1
        cov[f"spread{A - low}"] += 1
        x.R, x.opening, x.op = A, True, None
        x.pos = [A] * self.c.N                          # who is behind catches up before it sends anything
        for r in range(self.c.N):
            self.status(x, s, r)


# ------------------------------------------------------------------------------ network and callers
class Sim:
    def __init__(self, c):
        self.c, self.rng, self.t, self.q = c, random.Random(c.seed * 2 + 1), 0.0, []
        self.count, self.ids = itertools.count(), itertools.count(1)
        self.sent, self.useful, self.cover = (collections.Counter() for _ in range(3))
        self.proc = {}
        self.crashes, self.crash_in, self.crashed = list(c.crashes), None, 0
        self.stopped, self.alive = [], None
        self.boot()

    def unique(self):
        return next(self.ids)

    def at(self, dt, fn, *a):
        heapq.heappush(self.q, (self.t + dt, next(self.count), fn, a))

    def boot(self):
        if self.crashes:
            self.crash_in, self.down = self.crashes.pop(0)
        self.agg = Aggregator(self, self.unique())

    def guard(self, fn, *a):
        agg = self.agg
        try:
            fn(*a)
        except Crash:
            assert agg is self.agg
            if agg.state == "active" and any(x.sync is not None for x in agg.st):
                self.cover["killed in resync"] += 1
            self.agg, self.crashed = None, self.crashed + 1
            self.at(self.down, self.boot)
            if self.c.zombies and agg.state == "active":
                # Not dead, merely stopped: later it takes what reached it, beside its successor.
                self.cover["stopped"] += 1
                agg.queue = []
                self.stopped.append(agg)
                self.at(self.rng.uniform(1, 600), self.thaw, agg)

    def thaw(self, agg):
        self.stopped.remove(agg)
        self.at(self.rng.uniform(0, 5), self.zombie, agg)

    def zombie(self, agg):
        if agg.queue:
            fn, a = agg.queue.pop(0)
            self.alive = agg
            done = len([1 for slot in getattr(agg, "region").slots.values() if slot["done"]])
            fn(*a)
            self.alive = None
            if done != len([1 for slot in agg.region.slots.values() if slot["done"]]):
                self.cover["a stopped one finished a round"] += 1
            self.at(self.rng.uniform(0, 3), self.zombie, agg)

    def write(self, agg):
        if self.alive is None and self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.crash_in = None
                self.cover["killed in a slot"] += 1
                raise Crash

    def send(self, src, dst, p):
        c, r = self.c, self.rng
        if src == "A" and self.crash_in is not None and self.alive is None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.crash_in = None
                raise Crash
        self.sent[p["k"]] += 1
        copies = 1
        if self.t < c.fault_end:
            copies = 0 if r.random() < c.loss else 1
            for who, down, t0, t1 in c.deaf:
                if t0 <= self.t < t1 and who == (dst if down else src):
                    copies = 0
            while r.random() < c.dup and copies < 4:
                copies += 1
            if r.random() < c.ancient:
                self.at(r.uniform(20, 3000), self.deliver, dst, p, src)
        for _ in range(copies):
            d = r.uniform(0.9, 1.1) if r.random() >= c.late else r.uniform(1, c.late_max)
            self.at(d, self.deliver, dst, p, src)

    def deliver(self, dst, p, src):
        if dst == "A":
            for agg in self.stopped:                    # it has a queue that fills while it stands
                if p["k"] not in ("HELLO", "JOIN") and p["tok"] in agg.tok and len(agg.queue) < 200:
                    agg.queue.append((agg.receive, (p, src)))
            if self.agg:
                self.guard(self.agg.receive, p, src)
        elif dst in self.proc:
            self.proc[dst].receive(p, src)

    def kill(self, rank):
        if rank in self.proc:
            self.c.died = self.t
            self.proc.pop(rank).app.dead = True


class App:
    """The caller on one rank: runs a program of ops, checks, scribbles, leaves; rejoins after an error."""

    def __init__(self, sim, rank, programs):
        self.sim, self.rank, self.programs, self.prog = sim, rank, programs, 0
        self.done, self.dead, self.tries, self.life, self.log, self.open = False, False, 0, 0, [], []
        sim.proc[rank] = self.w = Worker(sim, rank, self)
        self.begin()

    def begin(self):
        if self.sim.proc.get(self.rank) is self.w:
            self.i = 0
            self.w.join()
            self.life += 1
            for _ in range(self.sim.c.depth):
                self.submit(self.life)

    def submit(self, life):
        ops = self.programs[self.prog]
        if life == self.life and self.sim.proc.get(self.rank) is self.w and self.i < len(ops):
            tag, data, ref = ops[self.i]
            op = Op(self.i, data[self.rank], tag, self.sim.c.S, self.sim.c.W,
                    "no_anchor" not in self.sim.c.mut)
            op.ref, op.began, op.arena = ref, self.sim.t, self.sim.rng.random() < .5
            self.sim.c.start = getattr(self.sim.c, "start", None) or (
                self.sim.t if self.w.state == "in" else None) or 20.0
            self.open.append(op)
            self.i += 1
            self.w.submit(op)

    def finished(self, w, op):
        c = self.sim.c
        if op.ref is None:
            raise Bug("an op that ranks disagree about ended well")
        if op.t != op.ref:
            raise Bug(f"rank {self.rank} op {op.no}: wrong sum")
        op.t[:] = [(666, 6.66)] * op.L                  # the caller reuses its memory at once
        self.end(op, "ok")
        pause = 0 if self.sim.rng.random() < 0.5 else self.sim.rng.uniform(0, c.pause)
        if self.i < len(self.programs[self.prog]):
            self.sim.at(pause, self.submit, self.life)
        elif not self.open:
            self.done = True
            self.sim.at(pause, w.leave)

    def failed(self, w, ops, why):
        c = self.sim.c
        if not (c.kill or c.mismatch) and not (self.done and not ops):   # others may have left by then
            raise Bug(f"rank {self.rank}: error without a cause: {why}")
        for op in ops:
            self.end(op, "error")
        if self.done and not ops:
            return w.gone()
        self.tries, self.life = self.tries + 1, self.life + 1
        if len(self.programs) > 1 and self.tries < 6 and not c.early():
            self.prog, self.open = 1, []
            self.sim.at(self.sim.rng.uniform(0, 50), self.begin)
        else:
            self.done = True
            w.gone()

    def end(self, op, how):
        c = self.sim.c
        if op not in self.open:
            raise Bug("an op ended twice")
        self.open.remove(op)
        c.last = self.sim.t
        self.log.append((self.prog, op.no, how))
        since = max(op.began, self.sim.c.died or 0)
        late = self.sim.t - since > (2 * T_DEAD + T_FORM + 800 + c.downtime if c.crashes else T_FORM + T_DEAD + 300)
        if how == "error" and late and not c.mismatch:
            raise Bug("error came too late")


def scenario(seed, mut=(), **fix):
    r = random.Random(seed)
    c = argparse.Namespace(seed=seed, mut=set(mut), died=None)
    c.N, c.S, c.W, c.H = r.randint(1, 6), r.randint(1, 3), r.randint(1, 3), r.choice((2, 2, 4, 8))
    c.loss, c.dup = r.choice((0, .01, .1, r.uniform(0, .3), .3)), r.choice((0, .1, r.uniform(0, .5), .5))
    c.ancient, c.late = r.choice((0, .02, .1)), r.choice((0, .1, .4))
    c.late_max, c.depth, c.pause = r.choice((6, 25, 80)), r.randint(1, 3), r.choice((5, 5, 100, 100, 500, 2600))
    c.probe_first, c.deaf = r.random() < .5, []
    for _ in range(r.choice((0, 0, 1, 2))):             # (rank, direction, from, to): a one-way blackout
        t = r.uniform(0, 300)
        c.deaf.append((r.randrange(c.N), r.random() < .8, t, t + r.choice((30, 150, 400))))
    c.fault_end = r.choice((300, 5000, 5000))
    c.crashes = []
    if r.random() < .6:
        for i in range(r.choice((1, 1, 2, 2, 3))):      # (sends until death, time down)
            c.crashes.append((r.choice((r.randint(0, 40), r.randint(0, 150), r.randint(0, 600))),
                              r.choice((1, 10, r.uniform(1, 150)))))
    c.zombies = r.random() < .5
    c.kill = c.revive = c.mismatch = None
    x = r.random()
    if x < .15:
        c.kill = (r.choice((r.uniform(0, 60), r.uniform(0, 400))), r.randrange(c.N))
        c.revive = r.choice((None, r.uniform(1, 20), r.uniform(1, 400)))
    elif x < .22 and c.N > 1:
        c.mismatch = r.choice(("order", "length"))
    if fix.pop("focus", False):                         # far-apart workers, killed while apart
        c.N, c.S, c.H = r.randint(2, 6), r.randint(1, 2), r.choice((2, 4, 8, 8))
        fix.update(density="one", length=r.randint(40, 120))
        c.deaf = [(r.randrange(c.N), r.random() < .9, t, t + r.choice((60, 150, 300)))
                  for t in (r.uniform(20, 200), r.uniform(50, 400))]
        c.crashes = [(r.randint(40, 500), r.uniform(1, 40)) for _ in range(r.randint(1, 3))]
    vars(c).update(fix)
    c.downtime = sum(d for _, d in c.crashes)

    def program(tag, nops):
        ops = []
        for k in range(nops):
            L = r.choice((0, 1, r.randint(0, c.S * c.W + 1), r.randint(0, 60), r.randint(20, 60), r.randint(50, 150)))
            L = fix.get("length", L)
            dens = fix.get("density", r.choice((0, .03, .2, .6, 1, None, "one")))
            data = []
            for w in range(c.N):
                d = r.choice((0, .05, .3, 1)) if dens is None else dens
                if dens == "one":                       # one owner, the others nearly always silent
                    d = .8 if w == c.seed % c.N else .02
                data.append([(r.getrandbits(60) + 1, r.uniform(-1, 1) * 10 ** r.randint(-9, 9))
                             if r.random() < d else None for _ in range(L)])
            ref = []
            for i in range(L):
                v = None
                for w in range(c.N):
                    if data[w][i] is not None:
                        v = data[w][i] if v is None else add(v, data[w][i])
                ref.append(v)
            ops.append(((tag, k), data, ref))
        return ops
    c.prog = [program("p", fix.get("ops", r.randint(1, 4)))]
    if c.kill and c.revive:
        c.prog.append(program("q", r.randint(1, 3)))
    c.bad = {}
    if c.mismatch:                                      # one rank sees another program
        ops, who = c.prog[0], r.randrange(c.N)
        ops += program("z", 2)
        k = r.randrange(len(ops) - 1)
        mine = list(ops)
        if c.mismatch == "order":
            mine[k], mine[k + 1] = (*ops[k + 1][:2], None), (*ops[k][:2], None)
        else:
            tag, data, _ = ops[k]
            mine[k] = (tag, [d + [None] * r.randint(1, 30) for d in data], None)
        for j in range(k, len(ops)):
            ops[j] = (*ops[j][:2], None)
            mine[j] = (*mine[j][:2], None)
        c.bad[who] = mine
    return c


def run(c, limit=3000000):
    sim = Sim(c)
    apps = [None] * c.N
    def start(r, progs):
        apps[r] = App(sim, r, progs)
    for r in range(c.N):
        sim.at(sim.rng.uniform(0, min(c.pause, 500)), start, r, [c.bad.get(r, c.prog[0])] + c.prog[1:])
    def early():                                        # someone finished its program before the death
        return any(a and a.programs[0] is c.prog[0] and (0, len(c.prog[0]) - 1, "ok") in a.log for a in apps)
    c.early = early
    if c.kill:
        sim.at(c.kill[0] + 1, sim.kill, c.kill[1])
        if c.revive:
            def revive():
                if c.died is not None and not early():
                    apps[c.kill[1]] = App(sim, c.kill[1], c.prog[1:] * 2)
            sim.at(c.kill[0] + 1 + c.revive, revive)
    end = c.fault_end + 25000
    n = 0
    while sim.q:
        sim.t, _, fn, a = heapq.heappop(sim.q)
        fn(*a)
        n += 1
        if n % 64 == 0 and all(a and (a.dead or a.done and a.w.state == "gone") for a in apps):
            if not (c.revive and sim.t < c.kill[0] + c.revive + 5):
                break
        if sim.t > end or n > limit:
            raise Bug("hang: " + "; ".join(f"{a.rank}:{a.w.state} open {[o.no for o in a.open]}" for a in apps
                                           if a and not a.dead and not (a.done and a.w.state == "gone")))
    for a in apps:
        if a.dead:
            continue
        if a.open:
            raise Bug("an op never ended")
        want = len(c.prog[-1])                          # the last program must have ended well, once
        ok = any(sum(l[0] == p and l[2] == "ok" for l in a.log) >= want for p in range(len(a.programs))
                 if p or a.programs[p] is c.prog[-1])
        if not ok and not c.mismatch and not (c.kill and (not c.revive or early())):
            raise Bug(f"rank {a.rank}: final program not completed {a.log}")
    return sim


MUTATIONS = """version_bit no_ack_bound resync_at_min stale_is_fresh skip_first_round
no_epoch leave_at_once virgin_is_progressed no_desc_check start_in_sync stale_join any_welcome no_anchor
former_dropped_early oldest_region_first commit_word_only committed_first applied_before_sync_ended
slot_reused_by_worker""".split()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seeds", type=int, default=1000)
    ap.add_argument("--first", type=int, default=0)
    ap.add_argument("--mut", help="one mutation, or all")
    ap.add_argument("--focus", action="store_true")
    ap.add_argument("--perf", action="store_true")
    ap.add_argument("--keep-going", type=int, default=1)
    ap.add_argument("--seconds", type=float, default=200)
    a = ap.parse_args()
    t0 = time.time()
    if a.perf:
        return perf()
    for m in (MUTATIONS if a.mut == "all" else a.mut.split(",") if a.mut else [None]):
        t0, bad, tot = time.time(), 0, collections.Counter()
        for seed in range(a.first, a.first + a.seeds):
            c = scenario(seed, [m] if m else (), focus=a.focus)
            try:
                sim = run(c)
                tot.update(sim.cover)
                tot["sent"] += sum(sim.sent.values())
                tot["crashes"] += sim.crashed
                tot["deaths"] += c.died is not None
                tot["mismatch"] += bool(c.mismatch)
                tot["H%d" % c.H] += 1
            except Exception as e:                      # mutants may also break the model itself
                if not isinstance(e, Bug) and not m:
                    raise
                if m:
                    run(scenario(seed, focus=a.focus))                 # the true rules must pass this seed
                bad += 1
                if bad <= (1 if m else 12):
                    print(f"{m or 'RULES'}: seed {seed}: {type(e).__name__}: {e}", flush=True)
                if bad >= a.keep_going:
                    break
            if time.time() - t0 > a.seconds:
                break
        print(f"{m or 'RULES'}: {seed - a.first + 1} seeds, {bad} failures, {dict(tot)}, {time.time()-t0:.0f} s",
              flush=True)
    return 0


def perf():
    print("N=4 S=4 W=2, RTO = 3 RTT, no reordering; packets per round (useful: each owner's DATA once, N results)")
    print("timeout-sends  H  loss  density  sent/useful  time/round(RTT=2)  " + "DATA useful-DATA RESULT ACK PROBE STATUS")
    for dens, pf, H, loss in itertools.product((1, .3, .05), (False, True), (2, 4, 8), (0, .01, .1)):
        k, u, rounds, t = collections.Counter(), collections.Counter(), 0, 0
        for seed in range(4):
            c = scenario(seed, N=4, S=4, W=2, H=H, loss=loss, dup=0, ancient=0, late=0, crashes=[], deaf=[],
                         kill=None, revive=None, mismatch=None, depth=2, pause=0, fault_end=1e9, ops=3,
                         length=800, density=dens, probe_first=pf)
            sim = run(c)
            k.update(sim.sent)
            u.update(sim.useful)
            rounds += sim.useful["RESULT"] / c.N
            t += (c.last - c.start) * c.S
        kinds = ("DATA", "RESULT", "ACK", "PROBE", "STATUS")
        print(f"{'PROBE' if pf else 'DATA ':5}  {H}  {loss:4}  {dens:4}   {sum(k[x] for x in kinds)/sum(u.values()):6.3f}"
              f"   {t/rounds:5.2f}   {k['DATA']/rounds:.2f} {u['DATA']/rounds:.2f} "
              + " ".join(f"{k[x]/rounds:.2f}" for x in kinds[1:]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
