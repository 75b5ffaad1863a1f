#!/usr/bin/env python3
"""The protocol of docs/protocol.md as an executable model: one job, its ranks, one aggregator, and
a network that loses, duplicates, delays, reorders and repeats packets.

    protocol_model.py --seeds 10000                 every variant, as many seeds of each
    protocol_model.py --variant keyed --apart       ranks that are far apart when an aggregator ends
    protocol_model.py --break all --seeds 1000      until each broken rule is noticed
    protocol_model.py --test                        what `meson test protocol_model` runs

Everything runs in virtual time and follows from one seed, in plain Python. No wrong sum, no call
that does not end, and no error without a cause may come of any seed.

**Variants.** *dense*: tensors in blocks. *keyed*: sums of pairs. *group*: both kinds of op in
turns. Results go by multicast, whose way to some ranks breaks, for a while or for good, or never
works. *standbys*: both kinds; formations with a member that was never heard are abandoned, too. In
all of them aggregators are killed or retire, ranks die, begin anew, join again, and disagree about
an op.

**Files.** A rule is one of docs/protocol.md.
  worker.py      rules 2, 3, 8 to 11, 16, 17, 21, 23 and 24, and a worker's part of multicast
  aggregator.py  rules 4, 12 to 15, 18 to 20, 22, 24 to 26, and the group's delivery
  ops.py         rules 7 and 13 to 15 of blocks, and of pairs (*Keyed streams*)
  network.py     the clock, the network, and the end of aggregators
  callers.py     each rank's program, the faults of a seed, and what must hold

**The theory.** Round R ends only if every rank awaits R - H + 1 at least. So all positions lie
within H rounds: the aggregator's H results answer any rank that is behind, and H + 1 contributions
of each rank are enough to replay what another aggregator needs. A replayed round has the same
result, to the bit, because a contribution is sent again as it was, and summed in the same order.

**Not in the model**: more than one aggregator and lane; windows, measured round trips and the
second expiry of rule 10; *withheld* sums; scaled blocks; cookies, trailers and encryption; a second
process with the same rank; the JOINs that must be repeated before a job forms; the POLL of an
aggregator that retires; losses of a group that is heard (`beacons_received`).

**Broken rules.** `--break NAME` breaks one rule; a seed must fail with it that passes without. No
seed of the first few hundred shows what six of them are for: any_packet_is_life, any_welcome,
no_tombstone, nonces_outlive, stale_join and thaw_joining.
"""
import argparse
import collections
import sys
import time

from basics import Bug
from callers import VARIANTS, run, scenario

# name: (variant, apart, what the broken rule does). The test runs those that are soon noticed.
BROKEN = {
    "any_packet_is_life": ("dense", False, "a replayed packet shows that a rank is alive"),
    "any_welcome": ("standbys", False, "a WELCOME of another incarnation counts"),
    "beacon_of_any_epoch": ("group", False, "a BEACON of a former epoch counts"),
    "count_twice": ("dense", False, "a contribution that comes twice is added twice"),
    "dropped_early": ("dense", True, "a rank drops what it sent once it has the result itself"),
    "emits_at_end": ("keyed", True, "a round sums the key that a rank's run has not reached"),
    "emitted_again": ("keyed", True, "pairs below the horizon are summed again"),
    "group_only": ("group", False, "ranks that do not hear the group get no unicast"),
    "hears_for_ever": ("group", False, "any BEACON ever heard is enough"),
    "jump_gap": ("dense", False, "a rank passes over a result that it lacks"),
    "leave_at_once": ("dense", True, "a rank leaves without LEFT"),
    "left_before_front": ("keyed", True, "a rank may leave before the front is reached"),
    "never_unreached": ("group", False, "a rank that misses BEACONs still hears the group"),
    "no_ack_bound": ("dense", True, "rounds end whatever positions ranks are at"),
    "no_descriptor_check": ("dense", False, "ranks may call different ops"),
    "no_epoch": ("dense", True, "a RESULT of a former epoch counts"),
    "no_first_stream": ("dense", False, "an op without blocks uses no stream"),
    "no_idle_keepalive": ("dense", False, "an idle rank sends no KEEPALIVE"),
    "no_progress_counts": ("standbys", False, "a rank without progress counts as one with it"),
    "no_tombstone": ("dense", False, "an ended token is unknown"),
    "nonces_outlive": ("dense", False, "a JOIN of an ended generation still counts"),
    "numbers_start_again": ("group", False, "KEEPALIVE numbers begin again when bound again"),
    "one_less_kept": ("dense", True, "one contribution less is kept"),
    "reapply_replayed": ("dense", True, "a replayed result is applied again"),
    "reapply_stale": ("dense", False, "a result below the position is applied again"),
    "repairs_by_group": ("group", False, "a rank that asks gets results by the group"),
    "resume_at_front": ("dense", True, "a stream resumes with the highest round"),
    "resume_with_new_run": ("keyed", True, "a contribution is made anew when it is replayed"),
    "resumed_is_not_opening": ("dense", True, "a resumed round does not wait for all ranks"),
    "retiring_aborts": ("dense", True, "an aggregator that retires aborts the job"),
    "room_by_arrival": ("keyed", True, "how much a KV_RESULT has depends on chance"),
    "skip_first_round": ("dense", False, "a first round does not wait for all ranks"),
    "stale_is_fresh": ("dense", True, "DATA of an earlier round counts for the running one"),
    "stale_join": ("dense", False, "an older JOIN replaces a newer one"),
    "start_in_sync": ("dense", True, "a rank sends DATA before the stream is live"),
    "thaw_joining": ("dense", True, "a rank that joins applies results"),
    "version_bit": ("dense", True, "a round is known by its lowest bit"),
}
TESTED_SEEDS = 25  # of each variant, with ranks near and far apart
TESTED_RULES = (
    "count_twice", "dropped_early", "emits_at_end", "emitted_again", "group_only", "jump_gap",
    "left_before_front", "no_ack_bound", "no_descriptor_check", "no_epoch",
    "no_progress_counts", "one_less_kept", "reapply_replayed", "resume_at_front",
    "resume_with_new_run", "resumed_is_not_opening", "retiring_aborts", "room_by_arrival",
    "skip_first_round", "stale_is_fresh", "version_bit",
)
TESTED_RULE_SEEDS = 60


def failure(seed, variant, broken, apart):
    """What the checks find in a seed, and the network that it ran on; one of them is None. A model
    with a broken rule may also break down."""
    try:
        return None, run(scenario(seed, variant, broken, apart))
    except Bug as error:
        return str(error), None
    except Exception as error:
        if not broken:
            raise
        return f"{type(error).__name__}: {error}", None


def run_seeds(variant, apart, seeds, seconds=float("inf")):
    """Returns whether all passed."""
    begin, failures, counts = time.time(), 0, collections.Counter()
    ran = 0
    for ran, seed in enumerate(seeds, 1):
        found, sim = failure(seed, variant, (), apart)
        if found:
            failures += 1
            print(f"{variant}: seed {seed}{' --apart' if apart else ''}: {found}", flush=True)
        else:
            counts.update(sim.cover)
            counts["packets"] += sum(sim.sent.values())
            counts["aggregators that ended"] += sim.crashed
            counts["ranks that died"] += sim.c.died is not None
            counts["mismatches"] += bool(sim.c.mismatch)
        if time.time() - begin > seconds:
            break
    told = ", ".join(f"{name}: {counts[name]}" for name in sorted(counts))
    print(f"{variant}{', apart' if apart else ''}: {ran} seeds, {failures} failures,"
          f" {time.time() - begin:.0f} s; {told}", flush=True)
    return not failures


def is_noticed(name, seeds, seconds=float("inf")):
    """Whether a seed fails with the rule broken. The same seed must pass with all rules."""
    variant, apart, what = BROKEN[name]
    begin = time.time()
    for seed in seeds:
        found, _ = failure(seed, variant, (name,), apart)
        if found:
            run(scenario(seed, variant, (), apart))
            print(f"{name} ({what}): noticed by {variant}, seed {seed}: {found}", flush=True)
            return True
        if time.time() - begin > seconds:
            break
    print(f"{name} ({what}): not noticed up to seed {seed}", flush=True)
    return False


def test():
    seeds = range(TESTED_SEEDS)
    passed = [run_seeds(variant, apart, seeds) for variant in VARIANTS for apart in (False, True)]
    noticed = [is_noticed(name, range(TESTED_RULE_SEEDS)) for name in TESTED_RULES]
    return all(passed + noticed)


def main():
    parser = argparse.ArgumentParser(description="The protocol's executable model.")
    add_option = parser.add_argument
    add_option("--variant", choices=VARIANTS, help="that alone (all)")
    add_option("--apart", action="store_true", help="ranks that are many rounds apart")
    add_option("--seeds", type=int, default=1000, help="of each variant, or most for a rule (1000)")
    add_option("--first", type=int, default=0, help="seed (0)")
    add_option("--break", dest="rule", choices=(*BROKEN, "all"), metavar="RULE",
               help=f"break this rule: all, {', '.join(BROKEN)}")
    add_option("--seconds", type=float, default=float("inf"), help="for each of them (no limit)")
    add_option("--test", action="store_true", help="some seeds of each variant, and some rules")
    a = parser.parse_args()
    seeds = range(a.first, a.first + a.seeds)
    if a.test:
        passed = test()
    elif a.rule:
        names = BROKEN if a.rule == "all" else [a.rule]
        passed = all([is_noticed(name, seeds, a.seconds) for name in names])
    else:
        variants = [a.variant] if a.variant else VARIANTS
        passed = all([run_seeds(v, a.apart, seeds, a.seconds) for v in variants])
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
