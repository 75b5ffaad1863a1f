"""The two kinds of op: what a rank contributes to a round, and how the aggregator sums it.

A Contribution and a RESULT have the same parts for both kinds. `place` says where the round begins:
the current block of each column, or the horizon, a key. `load` has the values: one block for each
column or None, or a run of (key, value). `after` says what follows at this rank: the next non-zero
block of each column, or the key behind the run.
"""
import bisect
from dataclasses import dataclass
from typing import Any

from basics import NONE, Bug, add


@dataclass
class Contribution:
    """Of a rank to a round. A keyed run may last several rounds: the rank owes it in the first."""
    op: int
    desc: tuple
    first: bool
    owes: bool
    place: Any
    load: tuple
    after: Any


@dataclass
class Result:
    """Of a round, the same for all ranks. `place` is that of the next round."""
    round: int
    op: int
    load: tuple
    place: Any
    rejected: int


class Op:
    """A call as one rank sees it. `result` is None where no rank has a value."""

    def __init__(self, no, data, tag, threshold, c):
        self.no, self.values, self.length, self.c = no, list(data), len(data), c
        self.desc = (type(self).__name__, tag, self.length, threshold)
        self.rejected, self.outcome = 0, None
        self.streams_left = sum(self.uses(s) for s in range(c.streams))


class DenseOp(Op):
    """Sums a tensor in place. Blocks lie in rows of streams * columns, each rotated."""

    def __init__(self, no, data, tag, threshold, c):
        super().__init__(no, data, tag, threshold, c)
        self.result = self.values
        self.filled = {}
        for i, value in enumerate(data):
            if value is not None:
                self.filled.setdefault(self.column_of(i), []).append(i)

    def uses(self, s):
        """Stream 0 takes part in every op, so that descriptors always meet."""
        first = s == 0 and "no_first_stream" not in self.c.broken
        return first or s * self.c.columns < self.length

    def column_of(self, i):
        columns = self.c.streams * self.c.columns
        return (i + (i // columns * 0x5D9D7397 % 2**32 * columns >> 32)) % columns

    def next_block(self, s, column, i, behind):
        """The rank's first non-zero block from i on, or behind it."""
        if i == NONE:
            return NONE
        mine = self.filled.get(s * self.c.columns + column, ())
        at = (bisect.bisect_right if behind else bisect.bisect_left)(mine, i)
        return mine[at] if at < len(mine) else NONE

    def contribution(self, s, place, first):
        owned = [i != NONE and self.next_block(s, column, i, False) == i
                 for column, i in enumerate(place)]
        load = tuple(self.values[i] if own else None for i, own in zip(place, owned))
        after = tuple(self.next_block(s, column, i, True) for column, i in enumerate(place))
        return Contribution(self.no, self.desc, first, first or any(owned), place, load, after)

    def begin(self, s):
        blocks = range(s * self.c.columns, (s + 1) * self.c.columns)
        return self.contribution(s, tuple(i if i < self.length else NONE for i in blocks), True)

    def apply(self, s, mine, result):
        """The contribution to the next round; None where the op has ended."""
        for i, value in result.load:
            if i not in mine.place:
                raise Bug("a block that is not the round's")
            self.result[i] = value
        if all(i == NONE for i in result.place):
            return None
        return self.contribution(s, result.place, False)

    def cut_anew(self, s, mine):
        """What the rank would contribute if it computed it again, from what it has by now."""
        return self.contribution(s, mine.place, mine.first)


class KeyedOp(Op):
    """Sums pairs of key and value. A key stands for a chunk here: it is never parted."""

    def __init__(self, no, data, tag, threshold, c):
        super().__init__(no, data, tag, threshold, c)
        self.result = [None] * self.length
        self.keys = [[] for _ in range(c.streams)]
        for i, value in enumerate(data):
            if value is not None:
                self.keys[self.stream_of(i)].append(i)

    def used(self):
        """How many streams: a small op uses few."""
        return max(1, min(self.c.streams, self.length))

    def stream_of(self, key):
        """Neighbours are spread over all streams."""
        return (key * 0x9E3779B1 >> 9) % self.used()

    def uses(self, s):
        return s < self.used()

    def run_from(self, s, key, first):
        """The pairs from `key` on that fit a packet, and the key that follows them."""
        keys, room = self.keys[s], self.c.run_room
        i = bisect.bisect_left(keys, key)
        run = tuple((k, self.values[k]) for k in keys[i:i + room])
        after = keys[i + room] if i + room < len(keys) else NONE
        return Contribution(self.no, self.desc, first, True, key, run, after)

    def begin(self, s):
        return self.run_from(s, 0, True)

    def apply(self, s, mine, result):
        self.rejected += result.rejected
        for key, value in result.load:
            if not mine.place <= key < result.place:
                raise Bug("a pair outside what the round sums")
            self.result[key] = value
        if result.place == NONE:
            return None
        if mine.after == result.place:  # this rank's run is summed
            return self.run_from(s, result.place, False)
        if mine.after < result.place:
            raise Bug("a round passed over keys of this rank")
        return Contribution(self.no, self.desc, False, False, result.place, mine.load, mine.after)

    def cut_anew(self, s, mine):
        return self.run_from(s, mine.place, mine.first)


# ------------------------------------------------------------------------------- at the aggregator
class DenseSums:
    """How a stream `x` of the aggregator takes, awaits and sums contributions of a dense op."""

    def __init__(self, c, _rng, _cover):
        self.c = c

    def take(self, x, rank, p):
        before = x.loads[rank] if rank in x.got else ()
        x.loads[rank] = tuple(add(a, b) if a and b else a or b for a, b in zip(before, p.load)) \
            if before else p.load
        x.after[rank] = p.after

    def owners(self, x):
        return {rank for rank, after in enumerate(x.after) if after is not None
                and any(i != NONE and mine == i for mine, i in zip(after, x.place))}

    def sums(self, x):
        """What is delivered, where the next round begins, and how many sums were rejected."""
        load = []
        for column, i in enumerate(x.place):
            total = None
            for rank in sorted(x.got):  # in this order always: the same to the bit
                value = x.loads[rank][column]
                if value is not None:
                    total = value if total is None else add(total, value)
            if total is not None:
                load.append((i, total))
        known = [after for after in x.after if after is not None]
        place = tuple(min(column) for column in zip(*known))
        return tuple(load), place, 0

    def is_end(self, place):
        return all(i == NONE for i in place)


class KeyedSums:
    """The same of a keyed op. A run stays in `loads` until it is summed."""

    def __init__(self, c, rng, cover):
        self.c, self.rng, self.cover = c, rng, cover

    def take(self, x, rank, p):
        if x.loads[rank] and not self.c.broken:
            raise Bug("more than one run of a rank")
        x.loads[rank] = tuple(pair for pair in p.load
                              if pair[0] >= x.place or "emitted_again" in self.c.broken)
        x.after[rank] = p.after

    def owners(self, x):
        return {rank for rank, after in enumerate(x.after) if after == x.place}

    def sums(self, x):
        """The pairs below the least following key, as many as a packet has room for."""
        end = min(x.after)
        merged = {}
        for load in x.loads:
            for key, value in load:
                if key < end or key == end and "emits_at_end" in self.c.broken:
                    merged[key] = value if key not in merged else add(merged[key], value)
        everything = sorted(merged)
        threshold = x.desc[3]
        keys = [key for key in everything if abs(merged[key][1]) >= threshold]
        room = self.c.result_room
        if "room_by_arrival" in self.c.broken:
            room = 1 + self.rng.randrange(room)
        place = keys[room] if len(keys) > room else end
        rejected = bisect.bisect_left(everything, place) - len(keys[:room])
        self.cover["rounds that nobody contributes to"] += not x.got
        self.cover["rounds cut by the packet"] += len(keys) > room
        self.cover["sums rejected"] += rejected
        x.loads = [tuple(pair for pair in load if pair[0] >= place) for load in x.loads]
        return tuple((key, merged[key]) for key in keys[:room]), place, rejected

    def is_end(self, place):
        return place == NONE


OPS = {"dense": DenseOp, "keyed": KeyedOp}
SUMS = {"DenseOp": DenseSums, "KeyedOp": KeyedSums}
