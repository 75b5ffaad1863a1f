"""The wall clock of a daemon and its ranks jumps by a day, and back: nothing is late because of
that, and times that the daemon reports stay right. The machine's clock does not change."""
import datetime
import json
import os
import re
import signal
import struct
import time
import urllib.request

import harness

DAY_S = 86400
ADDRESS = r"metrics at http://([0-9.:]+)/metrics"


class Jumps(harness.SystemTest):
    def setUp(self):
        self.clock = os.path.join(self.place, "clock")
        self.jump_to(0)
        self.began = time.monotonic()

    def jump_to(self, seconds):
        with open(self.clock, "r+b" if os.path.exists(self.clock) else "wb") as file:
            file.write(struct.pack("q", seconds))

    def status(self):
        with urllib.request.urlopen(f"http://{self.served_at}/status.json",
                                    timeout=harness.TIME_LIMIT) as answer:
            return json.load(answer)

    def log_is_off_by(self, daemon, seconds):
        """The clock time in the last line of the log."""
        stamp = re.findall(r"(?m)^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", daemon.err)[-1]
        logged = datetime.datetime.fromisoformat(stamp + "+00:00").timestamp()
        return abs(logged - time.time() - seconds) < DAY_S / 4

    def goes_on(self):
        """Waits until the daemon has taken two samples between which the job has done rounds."""
        def rounds():
            job, = self.status()["jobs"]
            return job["counters"]["rounds"]
        for _ in range(2):
            before = rounds()
            harness.wait_until(lambda: rounds() > before, "the job goes on")

    def check_times(self):
        status = self.status()
        passed = time.monotonic() - self.began
        job, = status["jobs"]
        self.assertTrue(job["active"])
        self.assertEqual(job["absent"], [])
        for name, told in (("uptime_s", status["uptime_s"]), ("silence_s", job["silence_s"]),
                           ("waiting_s", job["waiting_s"])):
            self.assertTrue(0 <= told <= passed, (name, told, passed))
        ages = status["history"]["age_s"]
        self.assertEqual(ages, sorted(ages, reverse=True))
        self.assertTrue(all(0 <= age <= passed for age in ages), (ages, passed))
        for rate in status["history"]["rounds_per_s"]:
            self.assertGreaterEqual(rate, 0)

    def test_disturb_no_job(self):
        clock = {"LD_PRELOAD": harness.program("libjumping_clock.so"), "JUMPING_CLOCK": self.clock}
        daemon = self.start_daemon("--metrics-listen", 0, "--liveness-timeout-ms", 2000, **clock)
        self.served_at = re.search(ADDRESS, daemon.err)[1]
        job = self.start_steady_job(2, daemon, **clock)
        harness.wait_until(lambda: self.status()["jobs"], "a sample has the job")
        for seconds in (DAY_S, -DAY_S, 0):
            with self.subTest(jump=seconds):
                self.jump_to(seconds)
                daemon.send(signal.SIGHUP)
                harness.wait_until(lambda: self.log_is_off_by(daemon, seconds), "the jump is seen")
                self.goes_on()
                self.check_times()
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(re.findall(r"(?m)^.* (?:warning|error) .*(?:silent|late|stood).*$",
                                    daemon.err), [])


if __name__ == "__main__":
    harness.main()
