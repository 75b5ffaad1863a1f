"""What dumpcap captures of jobs on a network, tshark shows by configs/wireshark/sluice.lua: none of
it is malformed, and there is as much as the daemon has counted."""
import collections
import os
import re
import signal
import unittest

import harness
import tshark

SECRET = "a-secret-that-these-ranks-share"
JOB = 7
RANKS = 2
GOOD = "1"  # sluice.integrity.status
LEFT = b"SL\x01\x86"  # how the packet begins that a rank is sent at last


class Packets(list):
    """Each packet's values by their filters, without "sluice."."""

    def of(self, kind, **values):
        values["kind"] = kind
        return [p for p in self if all(p[name] == value for name, value in values.items())]

    def different(self, kind, *names):
        return {tuple(p[name] for name in names) for p in self.of(kind)}


def values(row):
    """tshark 4.2 and later say True and False, earlier ones 1 and 0."""
    return [{"True": "1", "False": "0"}.get(value, value) for value in row.split("\t")]


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
@tshark.needed
class Captures(harness.NetworkTest):
    FIELDS = ("drop", "job", "rank", "stream", "round", "encrypted", "trailer.tag",
              "integrity.status", "data.flags.opening", "block", "key")
    KINDS = {"HELLO": "0x01", "JOIN": "0x02", "LEAVE": "0x04", "DATA": "0x05", "KV_DATA": "0x20",
             "CHALLENGE": "0x81", "WELCOME": "0x83", "LEFT": "0x86", "RESULT": "0x88",
             "KV_RESULT": "0xa0"}

    def capture(self, run, **settings):
        """The packets of `run(daemon)`, at the end of which two ranks leave; and the daemon,
        which has ended."""
        self.make_network(workers=RANKS, aggregators=1)
        daemon = self.start_aggregator(0, **settings)
        self.path = os.path.join(self.place, "capture")
        dumpcap = self.start("dumpcap", "dumpcap", "-q", "-B", 64, "-i", "a0", "-w", self.path)
        dumpcap.wait_to_say("File: ")
        run(daemon)
        harness.wait_until(lambda: self.ranks_that_left() >= RANKS, "dumpcap has all packets")
        self.ends_on_signal(daemon)
        dumpcap.send(signal.SIGINT)
        self.assertEqual(dumpcap.wait(), 0)
        self.assertRegex(dumpcap.err, r"received/dropped on interface 'a0': \d+/0 ")
        return self.dissect(), daemon

    def ranks_that_left(self):
        with open(self.path, "rb") as file:
            return file.read().count(LEFT)

    def dissect(self):
        """The packets that Sluice has sent; none is malformed."""
        fields = [f"sluice.{name}" for name in ("kind", *self.FIELDS)]
        rows = self.tshark("-Y", "udp", "-T", "fields", "-E", "occurrence=f",
                           *(word for field in fields for word in ("-e", field)))
        packets = Packets(dict(zip(("kind", *self.FIELDS), values(row))) for row in rows)
        names = {code: name for name, code in self.KINDS.items()}
        for packet in packets:
            self.assertEqual(packet["drop"], "")
            packet["kind"] = names.get(packet["kind"], packet["kind"])
        self.assertEqual(len({packet["job"] for packet in packets}), 1)
        print(dict(collections.Counter(packet["kind"] for packet in packets)))
        return packets

    def tshark(self, *arguments):
        return tshark.lines(self, self.path, *arguments)

    def check_membership(self, packets):
        """Each rank joins and leaves, in this order."""
        ranks = {(str(rank),) for rank in range(RANKS)}
        for kind in ("HELLO", "JOIN", "LEAVE"):
            self.assertEqual(packets.different(kind, "rank"), ranks)
        for kind in ("CHALLENGE", "WELCOME", "LEFT"):
            self.assertGreaterEqual(len(packets.of(kind)), RANKS)
        kinds = [packet["kind"] for packet in packets]
        self.assertLess(kinds.index("HELLO"), kinds.index("WELCOME"))
        self.assertLess(kinds.index("WELCOME"), kinds.index("LEAVE"))

    def check_rounds(self, packets, daemon):
        """Even if packets were repeated, each contribution and each sum was captured. (A keyed
        round may have sums alone: what did not fit the one before.)"""
        self.assertEqual({packet["integrity.status"] for packet in packets}, {GOOD})
        sent = packets.different("DATA", "stream", "round", "rank")
        sent |= packets.different("KV_DATA", "stream", "round", "rank")
        sums = packets.different("RESULT", "stream", "round")
        sums |= packets.different("KV_RESULT", "stream", "round")
        self.assertEqual(len(sent), self.counter(daemon, "contributions"))
        self.assertEqual(len(sums), self.counter(daemon, "rounds_finished"))
        self.assertLessEqual({(stream, round_) for stream, round_, _ in sent}, sums)

    def dense_job(self, **settings):
        return lambda daemon: self.end_steady_job(
            self.start_steady_job(RANKS, daemon, SLUICE_JOB=JOB, **settings))

    def test_a_dense_job(self):
        packets, daemon = self.capture(self.dense_job())
        self.check_membership(packets)
        self.check_rounds(packets, daemon)
        for kind in ("DATA", "RESULT"):
            self.assertTrue(any(packet["block"] for packet in packets.of(kind)))
        self.assertTrue(packets.of("DATA", **{"data.flags.opening": "1"}))

    def test_filters_that_the_documents_show(self):
        self.capture(self.dense_job())
        with open(os.path.join(harness.ROOT, "docs", "operators.md"), encoding="utf-8") as file:
            filters = re.findall(r"^\| `(sluice\.[^`]*)` \|", file.read(), re.MULTILINE)
        found = {of: len(self.tshark("-Y", of)) for of in filters}
        self.assertGreater(found["sluice.kind < 5 or sluice.kind in {0x81..0x87}"], 6 * RANKS)
        self.assertEqual(found["sluice.drop"], 0)

    def test_a_sparse_job(self):
        packets, daemon = self.capture(lambda daemon: self.all_end_well(
            self.start_job(RANKS, daemon, "api", "sparse_sums_beside_dense_ones")))
        self.check_membership(packets)
        self.check_rounds(packets, daemon)
        for kind in ("KV_DATA", "KV_RESULT"):
            self.assertTrue(any(packet["key"] for packet in packets.of(kind)))

    def test_an_encrypted_job(self):
        packets, daemon = self.capture(
            self.dense_job(SLUICE_SECRET=SECRET, SLUICE_ENCRYPT_PACKETS="on",
                           SLUICE_FAULTS="seed=3,loss=0.05"),  # so ranks ask, and get a STATUS
            SLUICE_AGGREGATOR_SECRET=SECRET)
        self.check_membership(packets)
        self.assertGreaterEqual(len(packets.of("DATA")), self.counter(daemon, "contributions"))
        self.assertGreaterEqual(len(packets.of("RESULT")),
                                self.counter(daemon, "rounds_finished"))
        for packet in packets:
            self.assertTrue(packet["trailer.tag"], packet)
            is_encrypted = packet["kind"] in ("DATA", "RESULT")
            self.assertEqual(packet["encrypted"] != "", is_encrypted)
            if is_encrypted:  # a STATUS shows its round to everybody
                self.assertEqual(packet["round"], "")


if __name__ == "__main__":
    harness.main()
