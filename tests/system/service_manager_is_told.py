"""The daemon informs the service manager, here a socket of this test, when it is ready, reloads and
ends, and feeds the watchdog while all of its lanes run."""
import os
import signal
import socket

import harness
import linux

INTERVAL_MS = 1000  # of the watchdog


class Told(harness.SystemTest):
    def setUp(self):
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        self.manager.bind(self.directory("notify"))

    def start_service(self, *flags, **settings):
        return self.start_daemon(*flags, NOTIFY_SOCKET=self.directory("notify"), **settings)

    def start_watched(self, *flags):
        return self.start_service(*flags, WATCHDOG_USEC=INTERVAL_MS * 1000)

    def next(self, seconds=harness.TIME_LIMIT):
        """The next message, by name; None if there is none within this time."""
        self.manager.settimeout(seconds)
        try:
            text = self.manager.recv(4096).decode()
        except TimeoutError:
            return None
        return dict(line.split("=", 1) for line in text.split("\n"))

    def next_with(self, name):
        while True:
            told = self.next()
            self.assertIsNotNone(told, f"{name} is never told")
            if name in told:
                return told

    def test_from_start_to_end(self):
        daemon = self.start_service("--drain-timeout-ms", 600_000)
        self.assertEqual(self.next(), {"READY": "1", "STATUS": "0 jobs"})
        job = self.start_steady_job(2, daemon)
        self.assertEqual(self.next(), {"STATUS": "1 jobs"})
        daemon.send(signal.SIGTERM)
        self.assertEqual(self.next(), {"STOPPING": "1", "STATUS": "1 jobs"})
        self.end_steady_job(job)
        self.assertEqual(self.next(), {"STATUS": "0 jobs"})
        self.assertEqual(daemon.wait(), 0)

    def test_of_a_reload_also_if_it_fails(self):
        config = self.directory("daemon.conf")
        for level in ("info", "debug", "none of them"):
            with open(config, "w", encoding="ascii") as file:
                file.write(f"log-level = {level}\n")
            if level == "info":
                daemon = self.start_service("--config", config)
            else:
                daemon.send(signal.SIGHUP)
                reloading = self.next()
                self.assertEqual(reloading.pop("RELOADING"), "1")
                self.assertTrue(reloading.pop("MONOTONIC_USEC").isdecimal())
                self.assertEqual(reloading, {})
            self.assertEqual(self.next()["READY"], "1")
        daemon.wait_to_say("reload: nothing was changed")

    def test_watchdog_is_fed_only_while_every_lane_runs(self):
        daemon = self.start_watched("--lanes", 2)
        for _ in range(3):
            self.next_with("WATCHDOG")
        with linux.stopped_thread(harness.thread_of(daemon, "sluice-lane-1")):
            daemon.wait_to_say(r"lane 1 has not begun a turn for \d+ ms: the watchdog is not fed")
            while self.next(0.001):  # earlier messages
                pass
            self.assertIsNone(self.next(2 * INTERVAL_MS / 1000))
        self.next_with("WATCHDOG")

    def test_watchdog_is_fed_while_jobs_leave(self):
        daemon = self.start_watched("--drain-timeout-ms", 600_000)
        job = self.start_steady_job(2, daemon)
        daemon.send(signal.SIGTERM)
        self.next_with("STOPPING")
        for _ in range(3):
            self.next_with("WATCHDOG")
        self.end_steady_job(job)
        self.assertEqual(daemon.wait(), 0)

    def test_watchdog_of_another_process_is_not_fed(self):
        self.start_service(WATCHDOG_USEC=1000, WATCHDOG_PID=os.getpid())
        self.assertIn("READY", self.next())
        self.assertIsNone(self.next(0.5))

    def test_by_an_abstract_name(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(harness.TIME_LIMIT)
            manager.bind(f"\0{self.place}")
            self.start_daemon(NOTIFY_SOCKET=f"@{self.place}")
            self.assertIn(b"READY=1", manager.recv(4096))

    def test_a_manager_that_is_not_there(self):
        nowhere = self.directory("nowhere")
        self.refuses(self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                                self.directory(), NOTIFY_SOCKET=nowhere), 1, nowhere,
                     "No such file or directory")


if __name__ == "__main__":
    harness.main()
