"""Monitoring shows what a daemon does: Prometheus, a browser, a terminal. Attacks on
these servers do not affect jobs."""
import itertools
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import harness

CTL = os.path.join(harness.ROOT, "scripts/sluice-ctl")
TOP = os.path.join(harness.ROOT, "scripts/sluice-top")
CONFIGS = os.path.join(harness.ROOT, "configs")
ADDRESS = r"metrics at http://([0-9.]+):(\d+)/metrics"
MARKUP = "<img src=x onerror=alert(1)>.sluice"  # a file's name may be this


class Watched(harness.SystemTest):
    def start_watched(self, *flags):
        daemon = self.start_daemon("--metrics-listen", 0, *flags)
        daemon.served_at = ":".join(re.search(ADDRESS, daemon.err).groups())
        return daemon

    def get(self, daemon, path, **headers):
        request = urllib.request.Request(f"http://{daemon.served_at}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=harness.TIME_LIMIT) as answer:
            return answer.read().decode()

    def metric(self, daemon, name):
        """Sum over labels; None if there is no such metric."""
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.get(daemon, "/metrics"), re.M)
        return sum(map(float, found)) if found else None

    def status(self, daemon):
        return json.loads(self.get(daemon, "/status.json"))

    def wait_for_metric(self, daemon, name, holds):
        harness.wait_until(lambda: holds(self.metric(daemon, name)), name)

    def run_tool(self, *command, status=0, **more):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True,
                              timeout=harness.TIME_LIMIT, check=False, **more)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def shown_page(self, daemon, width=800):
        """The page as a browser of that width has made it, without its script."""
        return self.run_tool(
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            f"--window-size={width},900", f"--user-data-dir={self.place}/chromium",
            "--virtual-time-budget=5000", f"http://{daemon.served_at}/",
            env={**os.environ, "HOME": self.place}).stdout.split("<script>")[0]

    def start_prometheus(self, config):
        path = os.path.join(self.place, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        self.port = harness.free_tcp_port()
        server = self.start("prometheus", "/usr/bin/prometheus", f"--config.file={path}",
                            f"--storage.tsdb.path={self.place}/tsdb",
                            f"--web.listen-address=127.0.0.1:{self.port}")
        server.wait_to_say("Server is ready to receive web requests")

    def query(self, text):
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={urllib.parse.quote(text)}"
        with urllib.request.urlopen(url, timeout=harness.TIME_LIMIT) as answer:
            return json.load(answer)["data"]["result"]

    def shows_on(self, dashboard):
        """Prometheus has data for every panel."""
        with open(os.path.join(CONFIGS, "grafana", dashboard), encoding="utf-8") as file:
            found = json.load(file)
        for panel in found["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "10s")
                for variable in found["templating"]["list"]:
                    query = query.replace(f"${variable['name']}", ".*")
                # Otherwise it may be empty: it is zero without failures.
                if not query.endswith("> 0"):
                    harness.wait_until(lambda asked=query: self.query(asked), query)


class Metrics(Watched):
    def test_build_is_told_everywhere(self):
        """In each program with such a flag, and in all outputs of a daemon."""
        of_daemon = harness.program("sluice-aggregator")
        version, build = re.fullmatch(r"sluice-aggregator (\S+) \(build (\S+)\)\n",
                                      self.run_tool(of_daemon, "--version").stdout).groups()
        for tool in ("sluice-perf", "sluice-pktgen"):
            self.assertEqual(self.run_tool(harness.program(tool), "--version").stdout,
                             f"{tool} {version} (build {build})\n")
        daemon = self.start_watched()
        self.assertTrue(daemon.err.splitlines()[0].endswith(f"version {version}, build {build}"))
        self.assertIn(f'sluice_build_info{{version="{version}",build="{build}"}} 1',
                      self.get(daemon, "/metrics"))
        status = self.status(daemon)
        self.assertEqual((status["version"], status["build"]), (version, build))
        top = self.run_tool(TOP, "--once", daemon.served_at).stdout
        self.assertIn(f"Sluice aggregator {version} (build {build})", top)
        self.ends_on_signal(daemon)
        self.assertIn(f"sluice at exit: version {version}, build {build}\n", daemon.err)

    def test_are_right_and_well_formed(self):
        daemon = self.start_watched()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=5)
        self.wait_for_metric(daemon, "sluice_job_rounds_total", lambda rounds: rounds)
        text = self.get(daemon, "/metrics")
        linted = self.run_tool("promtool", "check", "metrics", input=text)
        self.assertEqual(linted.stderr + linted.stdout, "")
        self.assertIn('sluice_job_rounds_total{job_id="5"}', text)
        self.assertEqual(self.metric(daemon, "sluice_jobs_formed_total"),
                         2 if harness.two_lanes else 1)
        self.assertEqual(self.metric(daemon, "sluice_job_ranks"), 2)
        self.assertEqual(self.metric(daemon, "sluice_job_present_ranks"), 2)
        self.assertEqual(self.metric(daemon, "sluice_local_workers"), 2)
        # Figures do not include their own time, so the first ones have none.
        self.wait_for_metric(daemon, "sluice_lane_commands_seconds_total", lambda time: time > 0)
        counted = self.metric(daemon, "sluice_job_round_seconds_count")
        self.assertLessEqual(counted, self.metric(daemon, "sluice_job_rounds_total"))
        causes = dict(re.findall(
            r'sluice_job_waited_seconds_total\{job_id="5",cause="(\w+)"\} (\S+)', text))
        self.assertGreater(float(causes["contribution"]), 0)
        for cause in ("packet_memory", "recovery", "retirement"):
            self.assertEqual(float(causes[cause]), 0, cause)
        self.assertLessEqual(self.metric(daemon, "sluice_job_bytes_contributed_total"),
                             2 * self.metric(daemon, "sluice_job_bytes_dense_total"))
        self.end_steady_job(job)
        self.wait_for_metric(daemon, "sluice_job_rounds_total", lambda rounds: rounds is None)
        self.assertGreater(self.metric(daemon, "sluice_rounds_finished_total"), 0)
        self.ends_on_signal(daemon)
        # Counters that no lane changes any more are the same here and in the log.
        self.assertGreater(self.counter(daemon, "rounds_finished"), 0)

    def test_are_all_documented(self):
        with open(os.path.join(harness.ROOT, "docs/metrics.md"), encoding="utf-8") as page:
            documented = set(re.findall(r"^\| `(sluice_(?!worker_)\w+)`", page.read(), re.M))
        daemon = self.start_watched()
        job = self.start_steady_job(2, daemon)
        harness.wait_until(lambda: self.status(daemon)["jobs"], "a job")
        served = set(re.findall(r"^# TYPE (\S+)", self.get(daemon, "/metrics"), re.M))
        self.assertEqual(documented, served)
        self.end_steady_job(job)

    def test_density_is_what_the_ranks_sent(self):
        daemon = self.start_watched()
        job = self.start_job(2, daemon.address, "sluice-perf", "-b", "4M", "-e", "4M", "--density",
                             "0.25", "--overlap", "all", "-n", "100000")
        harness.wait_until(
            lambda: any(j["density"] is not None for j in self.status(daemon)["jobs"]), "density")
        harness.wait_until(
            lambda: abs(self.status(daemon)["jobs"][0]["density"] - 0.25) < 0.02, "0.25")
        found = self.status(daemon)["jobs"][0]
        self.assertAlmostEqual(found["union_density"], 0.25, delta=0.03)
        self.assertEqual(found["absent"], [])
        for rank in job:
            rank.kill()

    def test_prometheus_scrapes_a_busy_daemon(self):
        daemon = self.start_watched()
        job = self.start_steady_job(2, daemon)
        for rules in ("sluice.rules.yml", "sluice.rules.test.yml"):
            shutil.copy(os.path.join(CONFIGS, "prometheus", rules), self.place)
        self.run_tool("promtool", "test", "rules", "sluice.rules.test.yml", cwd=self.place)
        with open(os.path.join(CONFIGS, "prometheus/prometheus.yml"), encoding="utf-8") as file:
            config = file.read().replace("127.0.0.1:9475", daemon.served_at).replace("5s", "1s")
        self.start_prometheus(config)
        harness.wait_until(
            lambda: self.query("rate(sluice_rounds_finished_total[10s]) > 0"), "a rate of rounds")
        self.shows_on("sluice.json")
        self.end_steady_job(job)


class Top(Watched):
    def test_prints_what_the_daemon_does(self):
        daemon = self.start_watched()
        job = self.start_steady_job(3, daemon, SLUICE_JOB=5)
        self.start_joiner(1, 4, daemon, SLUICE_JOB=6)
        harness.wait_until(lambda: len(self.status(daemon)["jobs"]) == 2, "two jobs")
        screen = self.run_tool(TOP, "--once", daemon.served_at).stdout
        self.assertRegex(screen, r"(?m)^ +5 +active +3/3 ")
        self.assertRegex(screen, r"(?m)^ +6 +forming +1/4 ")
        found = json.loads(self.run_tool(TOP, "--json", daemon.served_at).stdout)
        absent = {j["job"]: j["absent"] for j in found["jobs"]}
        self.assertEqual(absent, {5: [], 6: [0, 2, 3]})
        self.end_steady_job(job)

    def test_prints_no_control_characters_of_others(self):
        daemon = self.start_watched("--vhost-max-ports", 1)
        self.start_joiner(0, 2, daemon)
        self.wait_for_metric(daemon, "sluice_local_workers", lambda workers: workers == 1)
        name = "\33]0;title\7\33[31m.sluice"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(os.path.join(self.place, "socket"))
            listening.listen()
            os.rename(os.path.join(self.place, "socket"),
                      os.path.join(daemon.address.removeprefix("vhost:"), name))
            harness.wait_until(lambda: self.status(daemon)["events"], "a warning")
        screen = self.run_tool(TOP, "--once", daemon.served_at).stdout
        self.assertIn(r"\x1b]0;title\x07\x1b[31m.sluice refused", screen)

    def test_needs_no_proxy(self):
        daemon = self.start_watched()
        self.run_tool(TOP, "--once", daemon.served_at,
                      env={**os.environ, "http_proxy": "http://127.0.0.1:1"})

    def test_says_why_there_is_nothing(self):
        port = harness.free_tcp_port()
        failed = self.run_tool(TOP, "--once", port, status=1)
        self.assertRegex(failed.stderr, rf"no aggregator answers at 127.0.0.1:{port}: .*refused")
        for wrong in ("localhost", "127.0.0.1:", "127.0.0.1:http", "65536"):
            self.assertIn("[IPV4:]PORT expected", self.run_tool(TOP, wrong, status=2).stderr)
        self.run_tool(TOP, "--sort", "x", status=2)
        self.run_tool(TOP, "--interval", "0", status=2)

    def test_opens_a_job_on_a_terminal(self):
        daemon = self.start_watched()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=5)
        harness.wait_until(lambda: self.status(daemon)["jobs"], "a job")
        self.tmux("new-session", "-d", "-x", "120", "-y", "30", TOP, daemon.served_at)
        self.addCleanup(self.tmux, "kill-server", may_fail=True)
        self.wait_for_screen(r"(?m)^ +5 +active +2/2 ")
        self.tmux("send-keys", "Enter")
        self.wait_for_screen(r"job 5, active: 2 ranks(.|\n)*contributions +\d")
        self.tmux("send-keys", "Escape")
        self.wait_for_screen(r"LANE +JOBS")
        self.end_steady_job(job)
        self.wait_for_screen(r"JOB .*\n\n +LANE|JOB .*\n\nLANE")
        self.tmux("send-keys", "q")
        harness.wait_until(lambda: self.tmux("list-sessions", may_fail=True) is None, "it ends")

    def tmux(self, *command, may_fail=False):
        done = subprocess.run(["tmux", "-S", os.path.join(self.place, "tmux"), "-f", "/dev/null",
                               *command], capture_output=True, text=True, check=False,
                              timeout=harness.TIME_LIMIT)
        if done.returncode != 0 and not may_fail:
            self.fail(done.stderr)
        return done.stdout if done.returncode == 0 else None

    def wait_for_screen(self, pattern):
        harness.wait_until(lambda: re.search(pattern, self.tmux("capture-pane", "-p")), pattern)


class Draining(Watched):
    def test_is_shown_everywhere(self):
        control = os.path.join(self.place, "control")
        daemon = self.start_watched("--control-socket", control)
        job = self.start_steady_job(1, daemon)
        self.assertEqual(self.metric(daemon, "sluice_draining"), 0)
        self.assertNotIn("draining", self.run_tool(TOP, "--once", daemon.served_at).stdout)
        self.run_tool(CTL, "-s", control, "drain")
        self.wait_for_metric(daemon, "sluice_draining", lambda drains: drains == 1)
        self.assertIn("draining: takes no new jobs",
                      self.run_tool(TOP, "--once", daemon.served_at).stdout)
        shown = self.shown_page(daemon)
        self.assertIn("draining: takes no new jobs", shown)
        self.assertIn(f"<title>{socket.gethostname()} ({daemon.served_at}): Sluice aggregator<",
                      shown)
        self.end_steady_job(job)


class Page(Watched):
    def test_shows_jobs_and_no_markup_of_others(self):
        daemon = self.start_watched("--vhost-max-ports", 2)
        job = self.start_steady_job(2, daemon, SLUICE_JOB=5)
        # One worker too many, whose socket's name is markup: the daemon warns of it.
        path = os.path.join(self.place, MARKUP)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(path)
            listening.listen()
            os.rename(path, os.path.join(daemon.address.removeprefix("vhost:"), MARKUP))
            harness.wait_until(lambda: any(MARKUP in event["text"] for event in
                                           self.status(daemon)["events"]), "a warning")
            harness.wait_until(lambda: any(job["active"] and job["rounds_per_s"] > 0 for job in
                                           self.status(daemon)["jobs"]), "figures of the job")
            shown = self.shown_page(daemon)
        self.assertIn("&lt;img src=x onerror=alert(1)&gt;", shown)
        self.assertNotIn("<img", shown)
        self.assertRegex(shown, r"<td>5</td><td>active</td><td>2 of 2</td>")
        self.assertRegex(shown, r"received [0-9.]+ [kMG]?B/s")
        self.assertIn("<path", shown)
        widths = re.findall(r'viewBox="0 0 (\d+) \d+"', shown)
        self.assertEqual(len(widths), 4)
        self.assertEqual(set(re.findall(r'x2="(\d+)"', shown)), set(widths))
        self.assertNotIn("does not answer", shown)
        self.end_steady_job(job)

    def test_loads_nothing_from_elsewhere(self):
        daemon = self.start_watched()
        page = self.get(daemon, "/")
        self.assertEqual(re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:)?//", page), [])
        with urllib.request.urlopen(f"http://{daemon.served_at}/") as answer:
            self.assertIn("default-src 'none'", answer.headers["Content-Security-Policy"])


class Attackers(Watched):
    """A job continues with right sums, whatever comes over HTTP."""

    def setUp(self):
        self.daemon = self.start_watched()
        self.host, port = self.daemon.served_at.split(":")
        self.port = int(port)
        self.job = self.start_steady_job(2, self.daemon)

    def connect(self):
        connection = socket.create_connection((self.host, self.port), timeout=5)
        self.addCleanup(connection.close)
        return connection

    def still_serves(self):
        before = self.metric(self.daemon, "sluice_rounds_finished_total")
        self.wait_for_metric(self.daemon, "sluice_rounds_finished_total", lambda n: n > before)
        self.end_steady_job(self.job)
        self.ends_on_signal(self.daemon)

    def test_clients_that_never_read(self):
        for _ in range(40):
            self.connect().sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 200)
        self.still_serves()

    def test_a_thousand_open_connections(self):
        """A later client is answered at once: the server does not wait for these clients."""
        refused = 0
        for _ in range(1000):
            connection = socket.socket()
            connection.setblocking(False)
            self.addCleanup(connection.close)
            refused += connection.connect_ex((self.host, self.port)) not in (0, 115)
        self.assertEqual(refused, 0)
        self.still_serves()

    def test_slow_clients_make_nobody_wait(self):
        """When the server answers, it has closed most of its idle connections."""
        slow = [self.connect() for _ in range(200)]
        for connection in slow:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nA:")
        self.metric(self.daemon, "sluice_rounds_finished_total")
        self.assertGreater(sum(map(self.is_open, slow)), 50)
        self.still_serves()

    @staticmethod
    def is_open(connection):
        """The client has got no answer, not even that it is too late."""
        connection.setblocking(False)
        try:
            connection.recv(100)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            pass
        return False

    def test_without_descriptors_the_server_sleeps(self):
        """It answers again once it has descriptors."""
        pid = self.daemon.popen.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        taken = set(map(int, os.listdir(f"/proc/{pid}/fd")))
        first_free = next(number for number in itertools.count() if number not in taken)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free, limits[1]))
        waiting = self.connect()
        waiting.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        server = f"/proc/{pid}/task/{harness.thread_of(self.daemon, 'sluice-http')}/"
        self.look_at_turns(server)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        self.assertTrue(waiting.recv(12).endswith(b" 200"))
        self.still_serves()

    def look_at_turns(self, thread):
        """It sleeps a few times, and each time costs little."""
        def voluntary_and_time():
            with open(thread + "status", encoding="ascii") as status, \
                    open(thread + "stat", encoding="ascii") as stat:
                switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read(), re.M)
                return int(switches[1]), sum(map(int, stat.read().split()[13:15]))
        switches, ticks = voluntary_and_time()
        harness.wait_until(lambda: voluntary_and_time()[0] >= switches + 10, "it sleeps")
        self.assertLess(voluntary_and_time()[1] - ticks, 20)

    def refusal(self, path, **headers):
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.get(self.daemon, path, **headers)
        return refused.exception.code

    def test_malformed_requests(self):
        for request in (b"\0" * 3000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 5000,
                        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
                        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
                        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
                        b"GET /../../../etc/passwd HTTP/1.1\r\n\r\n",
                        b"GET /%ff%2e%2e/ HTTP/1.1\r\n\r\n"):
            with self.subTest(request=request[:40]):
                connection = self.connect()
                try:
                    connection.sendall(request)
                    connection.shutdown(socket.SHUT_WR)
                    answer = connection.recv(100)
                except OSError:
                    continue  # it was closed
                self.assertNotIn(b" 200 ", answer.splitlines()[0] if answer else b"")
        self.still_serves()

    def test_requests_that_would_change_something(self):
        for method in ("POST", "PUT", "DELETE"):
            request = urllib.request.Request(f"http://{self.daemon.served_at}/metrics",
                                             method=method, data=b"x")
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=harness.TIME_LIMIT)
            self.assertEqual(refused.exception.code, 405)
        self.assertEqual(self.refusal("/etc/passwd"), 404)
        # A web page whose name leads to 127.0.0.1.
        self.assertEqual(self.refusal("/status.json", Host="evil.example"), 403)
        self.still_serves()


class Workers(Watched):
    """Ranks serve their own metrics, if a setting says so."""

    def start_ranks(self, listen, ranks=2, **settings):
        daemon = self.start_daemon()
        job = self.start_steady_job(ranks, daemon, SLUICE_METRICS_LISTEN=listen, SLUICE_LOG="info",
                                    SLUICE_JOB=5, **settings)
        for rank in job:
            rank.served_at = ":".join(re.search(ADDRESS, rank.err).groups())
        return job

    def test_are_right_well_formed_and_documented(self):
        job = self.start_ranks(0)
        for number, rank in enumerate(job):
            self.wait_for_metric(rank, "sluice_worker_ops_total", lambda ops: ops)
            text = self.get(rank, "/metrics")
            linted = self.run_tool("promtool", "check", "metrics", input=text)
            self.assertEqual(linted.stderr + linted.stdout, "")
            self.assertRegex(text, rf'sluice_worker_ops_total{{job_id="5",rank="{number}",'
                                   r'kind="all_reduce",result="completed"} [1-9]')
            self.assertEqual(self.metric(rank, "sluice_worker_job_failed"), 0)
            self.assertEqual(self.metric(rank, "sluice_worker_job_ranks"), 2)
            self.assertGreater(self.metric(rank, "sluice_worker_sent_bytes_total"), 0)
            self.wait_for_metric(rank, "sluice_worker_round_trip_seconds", lambda time: time > 0)
            counted = dict(re.findall(r"^sluice_worker_(blocks\w*)_total{.*} (\S+)", text, re.M))
            self.assertEqual(float(counted["blocks"]),
                             float(counted["blocks_sent"]) + float(counted["blocks_withheld"]))
            with open(os.path.join(harness.ROOT, "docs/metrics.md"), encoding="utf-8") as page:
                documented = set(re.findall(r"^\| `(sluice_worker_\w+)`", page.read(), re.M))
            self.assertEqual(documented, set(re.findall(r"^# TYPE (\S+)", text, re.M)))
        self.end_steady_job(job)

    def test_prometheus_scrapes_all_ranks_of_a_machine(self):
        first = harness.free_tcp_port()
        job = self.start_ranks(f"{first}+", ranks=3)
        self.assertEqual(len({rank.served_at for rank in job}), 3)
        self.start_prometheus(json.dumps({"scrape_configs": [
            {"job_name": "ranks", "scrape_interval": "1s",
             "static_configs": [{"targets": [rank.served_at for rank in job]}]}]}))
        harness.wait_until(
            lambda: len(self.query("sum by (rank) (rate(sluice_worker_ops_total[10s])) > 0")) == 3,
            "a rate of ops of each rank")
        self.shows_on("sluice-workers.json")
        self.end_steady_job(job)

    def test_count_what_is_sent_again(self):
        job = self.start_ranks(0, SLUICE_FAULTS="seed=3,loss=0.05,direction=both")
        self.wait_for_metric(job[0], "sluice_worker_data_resent_total", lambda packets: packets)
        self.end_steady_job(job)

    def test_a_port_that_is_taken_is_an_error(self):
        daemon = self.start_daemon()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            rank = self.start_joiner(0, 1, daemon, SLUICE_METRICS_LISTEN=port)
            rank.wait()
        self.assertIn(f"metrics_listen: cannot serve HTTP at 127.0.0.1:{port}: "
                      "Address already in use", rank.err + rank.out)


class Mistakes(Watched):
    def test_a_port_that_is_taken(self):
        daemon = self.start_watched()
        second = self.start("a1", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory("a1"), "--metrics-listen", daemon.served_at)
        self.refuses(second, 1, f"metrics-listen: .*{daemon.served_at}: Address already in use")

    def test_an_address_of_another_machine(self):
        daemon = self.start("a0", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), "--metrics-listen", "192.0.2.1:9475")
        self.refuses(daemon, 1, "metrics-listen: .*192.0.2.1:9475: Cannot assign")

    def test_nothing_is_served_unless_told(self):
        daemon = self.start_daemon()
        self.assertNotRegex(daemon.err, ADDRESS)


if __name__ == "__main__":
    harness.main()
