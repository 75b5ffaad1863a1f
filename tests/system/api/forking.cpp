#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/api/check.hpp"

namespace sluice::api_test {
namespace {

void check_refused(const std::string& what, const std::function<void()>& call) {
  check_says(error_of(ErrorCode::kUnavailable, what, call), "forked");
}

/// What a child may do with inherited objects: destroy them.
void in_the_child(const Setting& setting, Communicator inherited, const Work& pending,
                  CompletionQueue& queue) {
  std::vector<float> tensor(10);
  check_refused("all_reduce", [&] { inherited.all_reduce(std::span(tensor)); });
  check_refused("barrier", [&] { inherited.barrier(); });
  check_refused("leave", [&] { inherited.leave(); });
  check_refused("joining", [&] { setting.join(3); });
  check_refused("a look at a queue", [&] { queue.next(std::chrono::seconds(0)); });
  check_refused("adding to a queue", [&] { queue.add(pending, 1); });
  if (setting.job.world_size > 1) {
    check(!pending.done(), "the op of before is not done");
    check_refused("waiting", [&] { pending.wait(); });
    check_refused("a bounded wait", [&] { pending.wait_for(std::chrono::seconds(1)); });
  }
  { const Communicator gone = std::move(inherited); }
  setting.context.~Context();  // not destroyed again: this process ends before that
  check_refused("a Context of its own",
                [] { const Context own(ContextOptions::from_environment()); });
  check_refused("a shared Context", [] { Context::shared(ContextOptions::from_environment()); });
}

}  // namespace

/// Rank 0 forks while its barrier waits for the others, which wait for its message.
void forked_children_are_refused(const Setting& setting) {
  Communicator word = setting.join(2);
  Communicator job = setting.join(1);
  if (job.rank() == 0) {
    const Work pending = job.barrier();
    CompletionQueue queue;
    const pid_t child = fork();
    check(child >= 0, "a process can be forked");
    if (child == 0) {
      try {
        in_the_child(setting, std::move(job), pending, queue);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "in the forked child: %s\n", error.what());
        _exit(1);
      }
      _exit(0);
    }
    int status = 0;
    check(waitpid(child, &status, 0) == child && status == 0, "the child ends well");
    word.barrier().wait();
    pending.wait();
  } else {
    word.barrier().wait();
    job.barrier().wait();
  }
  job.barrier().wait();  // the parent's job is unchanged
}

}  // namespace sluice::api_test
