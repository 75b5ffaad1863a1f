"""Groups of peer ranks that wait for requests: started once, asked as often as need be. In between
they block on a socket and cost nothing.

To each rank goes a line "OPERATION ELEMENTS NONZERO_BLOCKS OVERLAP SEED WARMUP ITERATIONS CHECK",
and back comes "MICROSECONDS... wrong ELEMENTS", of the timed iterations in order. Blocks have 256
elements; overlap is "random" (each rank's non-zero blocks are its own choice) or "all".
"""
import itertools
import socket

BLOCK_ELEMENTS = 256
START_S = 120
ANSWER_S = 300


class WrongSums(Exception):
    pass


class Rank:
    def __init__(self, connection):
        connection.settimeout(ANSWER_S)
        self.connection = connection
        self.talk = connection.makefile("rw", encoding="ascii")
        self.number = int(self.talk.readline())

    def ask(self, request):
        print(request, file=self.talk, flush=True)

    def answer(self):
        line = self.talk.readline()
        if not line:
            raise ConnectionError(f"rank {self.number} ended")
        return parse_answer(line)

    def close(self):
        self.talk.close()
        self.connection.close()


class RankGroup:
    """`launch(socket_path)` starts the ranks, which connect."""

    def __init__(self, path, ranks, launch):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(ranks)
            listener.settimeout(START_S)
            launch(path)
            self.ranks = [Rank(listener.accept()[0]) for _ in range(ranks)]

    def run(self, request):
        """Microseconds of each iteration, which are those of its slowest rank."""
        for rank in self.ranks:
            rank.ask(request)
        answers = [rank.answer() for rank in self.ranks]
        wrong = sum(wrong for _, wrong in answers)
        if wrong:
            raise WrongSums(f"{wrong} elements are wrong after: {request}")
        return slowest([times for times, _ in answers])

    def close(self):
        for rank in self.ranks:
            rank.close()


def request_line(operation, point, seed, iterations, check, warmup=1):
    elements = point.bytes // 4
    blocks = -(-elements // BLOCK_ELEMENTS)
    return (f"{operation} {elements} {nonzero_blocks(blocks, point.density)} {point.overlap} {seed}"
            f" {warmup} {iterations} {int(check)}")


def nonzero_blocks(blocks, density):
    """The number of blocks, as in sluice-perf."""
    return min(blocks, int(density * blocks + 0.5))


def parse_answer(line):
    """(times, wrong elements)"""
    *times, word, wrong = line.split()
    if word != "wrong":
        raise ValueError(f"no answer: {line!r}")
    return [float(time) for time in times], int(wrong)


def slowest(times_by_rank):
    return [max(times) for times in itertools.zip_longest(*times_by_rank, fillvalue=0)]
