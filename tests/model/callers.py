"""The program of each rank, the faults of a seed, and what must hold when it ends."""
import argparse
import random

from basics import INF, T_DEAD, T_FORM, T_KEEPALIVE, Bug, add
from network import Network
from ops import OPS
from worker import Worker

VARIANTS = {
    "dense": {"kinds": ("dense",)},
    "keyed": {"kinds": ("keyed",)},
    "group": {"kinds": ("dense", "keyed"), "group": True},
    "standbys": {"kinds": ("dense", "keyed"), "abandon": 0.3},
}


class Caller:
    """Submits ops, checks each result and then overwrites it: it is the caller's memory again.
    Leaves at the end, and begins again after an error."""

    def __init__(self, sim, rank, programs):
        self.sim, self.rank, self.programs, self.program = sim, rank, programs, 0
        self.done = self.dead = False
        self.tries, self.life, self.log, self.open = 0, 0, [], []
        sim.ranks[rank] = self.worker = Worker(sim, rank, self)
        self.begin()

    def runs(self):
        return self.sim.ranks.get(self.rank) is self.worker

    def begin(self):
        if self.runs():
            self.submitted = 0
            self.worker.join()
            self.life += 1
            for _ in range(self.sim.c.depth):
                self.submit(self.life)

    def submit(self, life):
        program = self.programs[self.program]
        if life == self.life and self.runs() and self.submitted < len(program):
            kind, tag, threshold, data, expected = program[self.submitted]
            op = OPS[kind](self.submitted, data[self.rank], tag, threshold, self.sim.c)
            op.expected, op.began = expected, self.sim.t
            self.open.append(op)
            self.submitted += 1
            self.worker.submit(op)

    def finished(self, worker, op):
        if op.expected is None:
            raise Bug("an op succeeded of which ranks had different ideas")
        if (op.result, op.rejected) != op.expected:
            raise Bug(f"rank {self.rank}, op {op.no}: wrong sum")
        op.values[:] = op.result[:] = [(666, 6.66)] * op.length
        self.end(op, "ok")
        rng = self.sim.rng
        pause = 0 if rng.random() < 0.5 else rng.uniform(0, self.sim.c.pause)
        if self.submitted < len(self.programs[self.program]):
            self.sim.at(pause, self.submit, self.life)
        elif not self.open:
            self.done = True
            self.sim.at(pause, worker.leave)

    def failed(self, worker, ops, why):
        c = self.sim.c
        left_behind = self.done and not ops  # others may have left before
        if not (c.kill or c.mismatch or left_behind):
            raise Bug(f"rank {self.rank}: an error without a cause: {why}")
        for op in ops:
            self.end(op, "error")
        if left_behind:
            return worker.gone()
        self.tries, self.life = self.tries + 1, self.life + 1
        if len(self.programs) > 1 and self.tries < 6 and not c.early():
            self.program, self.open = 1, []
            self.sim.at(self.sim.rng.uniform(0, 50), self.begin)
        else:
            self.done = True
            worker.gone()

    def end(self, op, how):
        c = self.sim.c
        if op not in self.open:
            raise Bug("an op ended twice")
        self.open.remove(op)
        self.log.append((self.program, op.no, how))
        since = max(op.began, c.died or 0)
        bound = T_FORM + T_DEAD + 300
        if c.crashes:
            bound += T_DEAD + 500 + sum(down for _, down in c.crashes)
        if how == "error" and self.sim.t - since > bound and not c.mismatch:
            raise Bug("an error came too late")

    def has_ended(self):
        return self.dead or self.done and self.worker.state == "gone"


def scenario(seed, variant, broken=(), apart=False):
    """The faults and programs of a seed. `apart`: ranks that are many rounds apart when the
    aggregator ends."""
    r = random.Random(seed)
    c = argparse.Namespace(seed=seed, broken=set(broken), died=None, group=False, abandon=0)
    vars(c).update(VARIANTS[variant])
    c.ranks, c.streams, c.columns = r.randint(1, 6), r.randint(1, 3), r.randint(1, 3)
    c.history, c.run_room, c.result_room = r.choice((2, 2, 4, 8)), r.randint(1, 6), r.randint(1, 6)
    c.loss = r.choice((0, .01, .1, r.uniform(0, .3), .3))
    c.duplicates = r.choice((0, .1, r.uniform(0, .5), .5))
    c.ancient, c.late = r.choice((0, .02, .1)), r.choice((0, .1, .4))
    c.latest = r.choice((6, 25, 80))
    c.depth, c.pause = r.randint(1, 3), r.choice((5, 5, 100, 100, 500, 2600))
    c.probe_first, c.faults_until = r.random() < .5, r.choice((300, 5000, 5000))
    c.blackouts = []  # (rank, downstream, from, to): nothing passes in one direction
    for _ in range(r.choice((0, 0, 1, 2))):
        t = r.uniform(0, 300)
        c.blackouts.append((r.randrange(c.ranks), r.random() < .8, t, t + r.choice((30, 150, 400))))
    c.crashes = []  # (sends until the aggregator ends, how long it is down)
    if r.random() < .6:
        for _ in range(r.choice((1, 1, 2, 2, 3))):
            sends = r.choice((r.randint(0, 40), r.randint(0, 150), r.randint(0, 600)))
            c.crashes.append((sends, r.choice((1, 10, r.uniform(1, 150)))))
    c.kill = c.revive = c.mismatch = None
    x = r.random()
    if x < .15:
        c.kill = (r.choice((r.uniform(0, 60), r.uniform(0, 400))), r.randrange(c.ranks))
        c.revive = r.choice((None, r.uniform(1, 20), r.uniform(1, 400)))
    elif x < .22 and c.ranks > 1:
        c.mismatch = r.choice(("order", "length"))
    c.cut = []  # (rank, from, to): nothing of the group reaches it
    for rank in range(c.ranks) if c.group else ():
        t = r.uniform(0, 600)
        c.cut += r.choice(([], [(rank, 0, INF)], [(rank, t, INF)],
                           [(rank, t, t + r.choice((30, 150, 600)))]))
    c.rejoin = [(r.randrange(c.ranks), r.uniform(20, 800)) for _ in range(r.choice((0, 0, 1, 2)))]
    c.rejoin += [(rank, t) for rank, t, _ in c.cut if t and r.random() < .3]  # it has moved
    length = density = None
    c.loses_nothing = c.group and not apart and r.random() < .4
    if c.loses_nothing:
        c.loss, c.late, c.blackouts, c.streams, c.columns = 0, 0, [], r.randint(1, 2), 1
        length = r.choice((60, 200, 600))
    if apart:
        c.ranks, c.streams = r.randint(2, 6), r.randint(1, 2)
        c.history, length, density = r.choice((2, 4, 8, 8)), r.randint(40, 120), "one"
        c.blackouts = [(r.randrange(c.ranks), r.random() < .9, t, t + r.choice((60, 150, 300)))
                       for t in (r.uniform(20, 200), r.uniform(50, 400))]
        c.crashes = [(r.randint(40, 500), r.uniform(1, 40)) for _ in range(r.randint(1, 3))]
    c.group_bound = T_KEEPALIVE * (6 if c.loses_nothing else 20)
    c.group_bound += sum(end - begin for _, _, begin, end in c.blackouts)
    add_programs(c, r, length, density)
    return c


def add_programs(c, r, length, density):
    def program(tag, ops):
        return [an_op(c, r, (tag, k), length, density) for k in range(ops)]

    c.programs, c.other_program = [program("p", r.randint(1, 4))], {}
    if c.kill and c.revive:
        c.programs.append(program("q", r.randint(1, 3)))
    if c.mismatch:  # one rank has another program
        ops, who = c.programs[0], r.randrange(c.ranks)
        ops += program("z", 2)
        k = r.randrange(len(ops) - 1)
        mine = list(ops)
        if c.mismatch == "order":
            mine[k], mine[k + 1] = ops[k + 1], ops[k]
        else:
            kind, tag, threshold, data, _ = ops[k]
            longer = [values + [None] * r.randint(1, 30) for values in data]
            mine[k] = (kind, tag, threshold, longer, None)
        for j in range(k, len(ops)):  # nothing from there on may succeed
            ops[j], mine[j] = (*ops[j][:4], None), (*mine[j][:4], None)
        c.other_program[who] = mine


def an_op(c, r, tag, length, density):
    """(kind, tag, threshold, each rank's values, (the sums, how many are rejected))."""
    kind = r.choice(c.kinds)
    n = r.choice((0, 1, r.randint(0, c.streams * c.columns + 1), r.randint(0, 60),
                  r.randint(20, 60), r.randint(50, 150)))
    n = n if length is None else length
    density = density or r.choice((0, .03, .2, .6, 1, None, "one"))
    data = []
    for rank in range(c.ranks):
        d = r.choice((0, .05, .3, 1)) if density is None else density
        if density == "one":  # one rank owns nearly everything
            d = .8 if rank == c.seed % c.ranks else .02
        data.append([(r.getrandbits(60) + 1, r.uniform(-1, 1) * 10 ** r.randint(-9, 9))
                     if r.random() < d else None for _ in range(n)])
    sums = []
    for i in range(n):
        total = None
        for values in data:
            if values[i] is not None:
                total = values[i] if total is None else add(total, values[i])
        sums.append(total)
    threshold = r.choice((0, 0, 1e-3, 1, INF)) if kind == "keyed" else 0
    rejected = sum(v is not None and abs(v[1]) < threshold for v in sums)
    sums = [v if v is not None and abs(v[1]) >= threshold else None for v in sums]
    return kind, tag, threshold, data, (sums, rejected)


def run(c, most_steps=3_000_000):
    """Runs a scenario to its end. Bug: something did not hold."""
    sim = Network(c)
    callers = [None] * c.ranks

    def start(rank):
        mine = c.other_program.get(rank, c.programs[0])
        callers[rank] = Caller(sim, rank, [mine] + c.programs[1:])

    def early():
        """Whether a rank had finished the first program before the other rank died."""
        last = (0, len(c.programs[0]) - 1, "ok")
        return any(a and a.programs[0] is c.programs[0] and last in a.log for a in callers)

    def revive():
        if c.died is not None and not early():
            callers[c.kill[1]] = Caller(sim, c.kill[1], c.programs[1:] * 2)

    c.early = early
    for rank in range(c.ranks):
        sim.at(sim.rng.uniform(0, min(c.pause, 500)), start, rank)
    if c.kill:
        sim.at(c.kill[0] + 1, sim.kill, c.kill[1])
        if c.revive:
            sim.at(c.kill[0] + 1 + c.revive, revive)
    for rank, t in c.rejoin:
        sim.at(t, sim.rejoin, rank)
    steps = 0
    while sim.queue:
        sim.step()
        steps += 1
        if steps % 64 == 0 and all(a and a.has_ended() for a in callers):
            if not (c.revive and sim.t < c.kill[0] + c.revive + 5):
                break
        if sim.t > c.faults_until + 25000 or steps > most_steps:
            raise Bug("no end: " + "; ".join(
                f"rank {a.rank} is {a.worker.state}, open {[op.no for op in a.open]}"
                for a in callers if a and not a.has_ended()))
    for a in callers:
        if not a.dead:
            check_end(c, a)
    return sim


def check_end(c, caller):
    if caller.open:
        raise Bug("an op never ended")
    wanted = len(c.programs[-1])
    last = [p for p, program in enumerate(caller.programs) if p or program is c.programs[-1]]
    succeeded = any(sum(entry[0] == p and entry[2] == "ok" for entry in caller.log) >= wanted
                    for p in last)
    may_fail = c.mismatch or c.kill and (not c.revive or c.early())
    if not succeeded and not may_fail:
        raise Bug(f"rank {caller.rank}: the last program did not succeed: {caller.log}")
