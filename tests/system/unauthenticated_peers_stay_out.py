"""A peer that lacks the job's secret, replays recorded packets, or sends millions of bad packets
learns no more than that it lacks the secret, and affects no job."""
import os
import socket
import threading
import unittest

import harness

SECRET = "a-secret-that-these-ranks-share"
OTHER_SECRET = "a-secret-of-quite-other-people"


class Secrets(harness.SystemTest):
    def refused(self, daemon, saying, **settings):
        rank = self.start_joiner(0, 2, daemon, SLUICE_JOB=8, **settings)
        self.refuses(rank, 3, "not authenticated", saying)
        daemon.wait_to_say("job 8: a join was refused: rank 0 did not prove the job's secret")

    def test_of_the_aggregator_that_a_rank_lacks(self):
        daemon = self.start_daemon(SLUICE_AGGREGATOR_SECRET=SECRET)
        job = self.start_steady_job(2, daemon, SLUICE_SECRET=SECRET)
        self.refused(daemon, "rank 0 did not prove the job's secret: it has none, and the "
                     "aggregator has one for this job .set SLUICE_SECRET_FILE")
        self.refused(daemon, "rank 0 did not prove the job's secret$", SLUICE_SECRET=OTHER_SECRET)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertGreater(self.counter(daemon, "not_authentic"), 0)
        for process in self.processes:
            self.assertNotIn(SECRET, process.out + process.err)

    def test_of_a_rank_that_the_aggregator_lacks(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon)
        self.refused(daemon, "rank 0 did not prove the job's secret: it has one, and the "
                     "aggregator has none for this job .its secret-file", SLUICE_SECRET=SECRET)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_that_differ_within_a_job(self):
        """A rank with another secret is refused, and the job waits for the right rank."""
        daemon = self.start_daemon(SLUICE_AGGREGATOR_SECRET=SECRET)
        first = self.start_joiner(0, 2, daemon, SLUICE_SECRET=SECRET)
        wrong = self.start_joiner(1, 2, daemon, SLUICE_SECRET=OTHER_SECRET)
        self.refuses(wrong, 3, "not authenticated", "rank 1 did not prove the job's secret")
        right = self.start_joiner(1, 2, daemon, SLUICE_SECRET=SECRET)
        for rank in (first, right):
            rank.wait_to_say("under way")

    def test_from_files(self):
        path = os.path.join(self.place, "secret")
        for name, text in (("daemon", f"7 {OTHER_SECRET}\n* {SECRET}\n"), ("rank", SECRET + "\n")):
            with open(os.open(path + name, os.O_WRONLY | os.O_CREAT, 0o600), "w",
                      encoding="ascii") as file:
                file.write(text)
        daemon = self.start_daemon("--secret-file", path + "daemon", "--authenticate-packets", "on")
        job = self.start_steady_job(2, daemon, SLUICE_SECRET_FILE=path + "rank")
        other = self.start_steady_job(2, daemon, SLUICE_JOB=7, SLUICE_SECRET=OTHER_SECRET)
        self.end_steady_job(job)
        self.end_steady_job(other)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "not_authentic"), 0)


class Garbage(harness.SystemTest):
    def start_sender(self, sort, amount):
        return self.start(sort, harness.program("garbage_sender"), self.directory(), 7, sort,
                          amount)

    def test_of_every_sort(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
        self.all_end_well([self.start_sender("rounds", 20)])
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        for reason in ("too_short", "bad_magic", "bad_version", "bad_kind", "bad_length",
                       "wrong_direction", "unknown_job", "unknown_token", "wrong_incarnation"):
            self.assertGreater(self.counter(daemon, reason), 0, reason)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)
        self.assertEqual(self.counter(daemon, "jobs_left"), 1)

    def test_a_flood_of_noise(self):
        self.check_flood("noise", "bad_magic")

    def test_a_flood_of_forged_tokens(self):
        self.check_flood("forged", "unknown_token")

    def check_flood(self, sort, reason):
        """A job that runs, and one that begins and ends meanwhile."""
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon, elements=200_000, SLUICE_JOB=7)
        flood = self.start_sender(sort, 4)
        self.end_steady_job(self.start_steady_job(2, daemon))
        self.assertTrue(flood.is_running())
        sent = int(flood.wait_to_say(r"sent (\d+)").group(1))
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        dropped = self.counter(daemon, reason) + self.counter(daemon, "rate_limited")
        print(f"{sent} packets of {sort} sent, {dropped} dropped by the engine")
        self.assertGreater(dropped, 10_000)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)
        self.assertEqual(self.counter(daemon, "jobs_left"), 2)


class Recorder:
    """Records all frames that come from a link into the switch, and can send them again."""

    def __init__(self, interface):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((interface, 0))
        self.socket.settimeout(0.1)
        self.frames = []
        self.recording = True
        self.thread = threading.Thread(target=self._record)
        self.thread.start()

    def _record(self):
        while self.recording and len(self.frames) < 20_000:
            try:
                frame, origin = self.socket.recvfrom(65536)
            except TimeoutError:
                continue
            if origin[2] != socket.PACKET_OUTGOING:
                self.frames.append(frame)

    def stop(self):
        self.recording = False
        self.thread.join()
        self.socket.close()

    def send_again(self, interface):
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
            out.bind((interface, 0))
            for frame in self.frames:
                out.send(frame)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Replay(harness.NetworkTest):
    """An attacker at the switch replays a whole session of the job, in its next session."""

    def check(self, **settings):
        self.make_network(workers=2, aggregators=1)
        daemon = self.start_aggregator(0, **settings)
        recorder = Recorder("w0")
        try:
            self.end_steady_job(self.start_steady_job(2, daemon, SLUICE_JOB=7, **settings))
        finally:
            recorder.stop()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7, **settings)
        recorder.send_again("a0")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertGreater(self.counter(daemon, "unknown_token"), 0)
        self.assertGreater(self.counter(daemon, "stale_join"), 0)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)
        self.assertEqual(self.counter(daemon, "jobs_left"), 2)

    def test_without_a_secret(self):
        self.check()

    def test_with_packets_authenticated(self):
        self.check(SLUICE_AGGREGATOR_SECRET=SECRET, SLUICE_SECRET=SECRET,
                   SLUICE_AUTHENTICATE_PACKETS="on")

    def test_with_packets_encrypted(self):
        self.check(SLUICE_AGGREGATOR_SECRET=SECRET, SLUICE_SECRET=SECRET,
                   SLUICE_ENCRYPT_PACKETS="on")


if __name__ == "__main__":
    harness.main()
