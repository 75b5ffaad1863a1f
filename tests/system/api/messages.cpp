// send and recv.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "tests/system/api/bits.hpp"
#include "tests/system/api/check.hpp"

namespace sluice::api_test {
namespace {

std::uint16_t neighbour(const Communicator& job, unsigned distance) {
  return static_cast<std::uint16_t>((job.rank() + distance) % job.world_size());
}

/// Every rank sends to the next one first, and then receives.
template <class T>
void pass_around(Communicator& job, std::uint64_t count) {
  const std::uint16_t after = neighbour(job, 1);
  const std::uint16_t before = neighbour(job, job.world_size() - 1u);
  const std::vector<T> sent = elements<T>(count, job.rank());
  std::vector<T> received = elements<T>(count, 99);  // all of it must be overwritten
  const Work send = job.send(std::span(sent), after);
  const Work recv = job.recv(std::span(received), before);
  recv.wait();
  send.wait();
  check(same<T>(received, elements<T>(count, before)),
        std::to_string(count) + " " + std::string(name(ElementTypeOf<T>::kValue)) + " from rank " +
            std::to_string(before));
}

/// Rank 0 sends to rank 1 with `call`; each side does what is given for its message. Other ranks do
/// nothing.
void between_two(Communicator& job, const std::function<void()>& sends,
                 const std::function<void()>& receives) {
  if (job.rank() == 0) sends();
  if (job.rank() == 1) receives();
}

}  // namespace

void messages_around_a_ring(const Setting& setting) {
  Communicator job = setting.join(1);
  for (const std::uint64_t count : {0u, 1u, 255u, 257u, 10'007u, 1'000'003u})
    pass_around<float>(job, count);
  pass_around<double>(job, 5001);
  pass_around<Float16>(job, 5001);
  pass_around<BFloat16>(job, 5001);
  pass_around<std::int64_t>(job, 5001);
  pass_around<std::int32_t>(job, 5001);
  pass_around<std::int16_t>(job, 5001);
  pass_around<std::int8_t>(job, 5001);
  pass_around<std::uint8_t>(job, 5001);
}

/// From each rank to each: all sends come before the first recv, and are waited for in another
/// order.
void messages_between_all_at_once(const Setting& setting) {
  Communicator job = setting.join(1);
  constexpr std::uint64_t kCount = 200'001;
  const std::vector<float> sent = elements<float>(kCount, job.rank());
  std::vector<std::vector<float>> received(job.world_size(), std::vector<float>(kCount));
  std::vector<Work> works;
  for (unsigned d = 1; d < job.world_size(); ++d)
    works.push_back(job.send(std::span(sent), neighbour(job, d)));
  for (unsigned d = 1; d < job.world_size(); ++d) {
    const std::uint16_t from = neighbour(job, d);
    works.push_back(job.recv(std::span(received[from]), from));
  }
  std::reverse(works.begin(), works.end());
  for (const Work& work : works) work.wait();
  for (std::uint16_t r = 0; r < job.world_size(); ++r)
    if (r != job.rank())
      check(same<float>(received[r], elements<float>(kCount, r)), "from " + std::to_string(r));
}

/// Some small and some large messages; the receiver is late for some, and early for others.
void messages_keep_their_order(const Setting& setting) {
  Communicator job = setting.join(1);
  constexpr unsigned kMessages = 300;
  const auto count = [](unsigned i) { return i % 50 == 7 ? 100'000u : i % 5; };
  std::vector<std::vector<std::int32_t>> tensors;
  std::vector<Work> works;
  const auto start = [&](bool sends) {
    for (unsigned i = 0; i < kMessages; ++i) {
      tensors.push_back(elements<std::int32_t>(count(i), sends ? i : 5000));
      const std::span tensor(tensors.back());
      const MoveOptions options{.tag = i};
      works.push_back(sends ? job.send(tensor, 1, options) : job.recv(tensor, 0, options));
    }
    for (const Work& work : works) work.wait();
  };
  tensors.reserve(kMessages);
  between_two(
      job, [&] { start(true); }, [&] { start(false); });
  for (unsigned i = 0; i < kMessages && job.rank() == 1; ++i)
    check(same<std::int32_t>(tensors[i], elements<std::int32_t>(count(i), i)),
          "message " + std::to_string(i));
}

/// Rank 0 has begun a sum that the others begin only after its message.
void messages_wait_for_no_collective(const Setting& setting) {
  Communicator job = setting.join(1);
  std::vector<float> tensor(300'000, 1.0F);
  std::vector<float> word{42.0F};
  Work sum;
  if (job.rank() == 0) sum = job.all_reduce(std::span(tensor));
  for (std::uint16_t r = 1; r < job.world_size(); ++r) {
    if (job.rank() == 0) job.send(std::span(word), r).wait();
    if (job.rank() != r) continue;
    word[0] = 0;
    job.recv(std::span(word), 0).wait();
    check(word[0] == 42.0F, "the message came");
  }
  if (job.rank() != 0) sum = job.all_reduce(std::span(tensor));
  sum.wait();
  check(tensor[299'999] == static_cast<float>(job.world_size()), "the sum is right");
}

void messages_of_what_is_read_only(const Setting& setting) {
  Communicator job = setting.join(1);
  constexpr std::size_t kBytes = 1 << 16;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "memory for a tensor");
  std::memset(memory, job.rank() + 7, kBytes);
  between_two(
      job,
      [&] {
        mprotect(memory, kBytes, PROT_READ);
        job.send(memory, kBytes, ElementType::kInt8, 1).wait();
      },
      [&] {
        job.recv(memory, kBytes, ElementType::kInt8, 0).wait();
        const std::span bytes(static_cast<const std::byte*>(memory), kBytes);
        check(std::all_of(bytes.begin(), bytes.end(), [](auto b) { return b == std::byte{7}; }),
              "a read-only tensor has come");
      });
  munmap(memory, kBytes);
}

void messages_are_checked(const Setting& setting) {
  Communicator job = setting.join(1);
  std::vector<float> tensor(100);
  const auto refused = [](const std::string& what, const std::function<void()>& call) {
    check_says(error_of(ErrorCode::kInvalidArgument, what, call), what);
  };
  const std::string own = std::to_string(job.rank());
  const std::string ranks = std::to_string(job.world_size());
  refused("send: rank " + own + "; another than this rank, " + own,
          [&] { job.send(std::span(tensor), job.rank()); });
  refused("recv: rank " + ranks + "; another than this rank, " + own +
              ", below world_size = " + ranks + " expected",
          [&] { job.recv(std::span(tensor), job.world_size()); });
  if (job.world_size() == 1) return;
  const std::uint16_t other = neighbour(job, 1);
  refused("send: a tensor is null", [&] { job.send(nullptr, 1, ElementType::kFloat32, other); });
  refused("recv: a tensor is null", [&] { job.recv(nullptr, 1, ElementType::kFloat32, other); });
  refused("send: the element type is none of ElementType",
          [&] { job.send(tensor.data(), 1, static_cast<ElementType>(10), other); });
  refused("recv: ",
          [&] { job.recv(tensor.data(), ~std::uint64_t{0}, ElementType::kFloat32, other); });
  pass_around<float>(job, 1000);  // refused calls have started nothing
}

/// Both sides get an error; the other direction, other ranks and collectives are not affected.
void messages_that_the_sides_disagree_about(const Setting& setting) {
  const auto disagree = [&](const std::string& field, const std::string& of_sender,
                            const std::string& of_receiver,
                            const std::function<Work(Communicator&)>& sends,
                            const std::function<Work(Communicator&)>& receives) {
    Communicator job = setting.join(9);
    Communicator signal = setting.join(2);
    std::vector<std::int64_t> tensor(100);
    const auto fails = [&](const Work& work) {
      const Error error = error_of(ErrorCode::kOpMismatch, field, [&] { work.wait(); });
      check(error.op() == 1, "the message is named");
      check_says(error, "job 9: ");
      check_says_both(error, field, of_sender, of_receiver);
      check_says(error, "message 1 from rank 0 to rank 1");
    };
    between_two(
        job,
        [&] {
          job.send(std::span(tensor), 1).wait();
          signal.barrier().wait();  // otherwise the end may meet the receiver without that message
          fails(sends(job));
          fails(job.send(std::span(tensor), 1));
          job.recv(std::span(tensor), 1).wait();
        },
        [&] {
          job.recv(std::span(tensor), 0).wait();
          signal.barrier().wait();
          fails(receives(job));
          fails(job.recv(std::span(tensor), 0));
          job.send(std::span(tensor), 0).wait();
        });
    if (job.rank() > 1) signal.barrier().wait();
    job.barrier().wait();
  };
  std::vector<std::int64_t> tensor(100);
  const auto send = [&](std::uint64_t count, ElementType type, std::uint64_t tag) {
    return [&tensor, count, type, tag](Communicator& job) {
      return job.send(tensor.data(), count, type, 1, {.tag = tag});
    };
  };
  const auto recv = [&](std::uint64_t count, ElementType type, std::uint64_t tag) {
    return [&tensor, count, type, tag](Communicator& job) {
      return job.recv(tensor.data(), count, type, 0, {.tag = tag});
    };
  };
  constexpr ElementType kType = ElementType::kFloat32;
  disagree("element count", "81", "82", send(81, kType, 0), recv(82, kType, 0));
  disagree("tag", "17", "18", send(50, kType, 17), recv(50, kType, 18));
  disagree("element type", "float", "int32", send(50, kType, 0), recv(50, ElementType::kInt32, 0));
}

/// The side that sends or receives first waits, and is told which rank it waits for: on a new
/// channel, and then on an existing one.
void messages_await_the_other_side(const Setting& setting) {
  Communicator job = setting.join(1);
  Communicator signal = setting.join(2);
  std::vector<float> tensor(1000, 1.0F);
  const auto awaits = [&](const Work& work, std::uint16_t other) {
    const std::vector<std::uint16_t> awaited{other};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (work.stragglers() != awaited && std::chrono::steady_clock::now() < deadline)
      check(!work.wait_for(std::chrono::milliseconds(1)), "a message of one side is not done");
    check(work.stragglers() == awaited, "stragglers() is the other side");
    check(job.stragglers() == awaited, "stragglers() of the communicator");
    check(job.statistics().ops_pending == 1, "statistics() of a pending message");
    signal.barrier().wait();
    work.wait();
  };
  between_two(
      job, [&] { awaits(job.send(std::span(tensor), 1), 1); },
      [&] {
        signal.barrier().wait();
        job.recv(std::span(tensor), 0).wait();
      });
  between_two(
      job,
      [&] {
        signal.barrier().wait();
        job.send(std::span(tensor), 1).wait();
      },
      [&] { awaits(job.recv(std::span(tensor), 0), 0); });
  for (int turn = 0; turn < 2 && job.rank() > 1; ++turn) signal.barrier().wait();
}

/// Rank 1 has received one message and leaves in order; the next message has no receiver.
void messages_to_one_that_left(const Setting& setting) {
  Communicator signal = setting.join(2);
  Communicator job = setting.join(1);
  std::vector<float> tensor(1000, 1.0F);
  between_two(
      job, [&] { job.send(std::span(tensor), 1).wait(); },
      [&] { job.recv(std::span(tensor), 0).wait(); });
  if (job.rank() == 1) job.leave();
  signal.barrier().wait();
  if (job.rank() == 0) {
    const Work work = job.send(std::span(tensor), 1);
    const Error error =
        error_of(ErrorCode::kRankLeft, "a message to a rank that left", [&] { work.wait(); });
    check(error.rank() == 1, "the rank that left is named");
    check_says(error, "job 1: rank 1 left");
  }
  if (job.rank() == 1) {
    const Work work = job.send(std::span(tensor), 0);
    error_of(ErrorCode::kAborted, "a message after leave()", [&] { work.wait(); });
  }
  signal.barrier().wait();
}

/// The last rank sends a message that nobody receives, and leaves: the job is aborted, as with an
/// op pending.
void left_with_messages_pending(const Setting& setting) {
  const std::uint16_t last = setting.job.world_size - 1;
  Communicator signal = setting.join(2);
  std::vector<float> tensor(1000, 1.0F);
  {
    Communicator job = setting.join(1);
    pass_around<float>(job, 100);
    signal.barrier().wait();
    if (job.rank() == last) {
      const Work work = job.send(std::span(tensor), 0);
      error_of(ErrorCode::kAborted, "leaving with a message pending", [&] { job.leave(); });
      error_of(ErrorCode::kAborted, "a message of one that left", [&] { work.wait(); });
    }
    signal.barrier().wait();
    if (job.rank() != last) {
      const Work work = job.recv(std::span(tensor), neighbour(job, 1));
      const Error error =
          error_of(ErrorCode::kRankLeft, "a message of a job that is over", [&] { work.wait(); });
      check(error.rank() == last, "the rank that ended the job is named");
    }
  }
  signal.barrier().wait();
  Communicator again = setting.join(1);
  pass_around<float>(again, 100);
}

/// Rank 0 waits for a message that the last rank never sends: at once, or after a first message
/// between them.
void messages_that_time_out(const Setting& setting) {
  const std::uint16_t last = setting.job.world_size - 1;
  Communicator signal = setting.join(2);
  std::vector<float> tensor(1000, 1.0F);
  for (const bool met : {false, true}) {
    Communicator job = setting.join(1);
    signal.barrier().wait();
    if (met && job.rank() == last) job.send(std::span(tensor), 0).wait();
    if (met && job.rank() == 0) job.recv(std::span(tensor), last).wait();
    signal.barrier().wait();
    Work work;
    if (job.rank() == 0) {
      work = job.recv(std::span(tensor), last);
      work.set_timeout(std::chrono::milliseconds(50));
    } else {
      work = job.barrier();  // rank 0 never begins it
    }
    const std::string number = met ? "1" : "0";
    const Error error =
        error_of(ErrorCode::kOpTimedOut, "a job whose message timed out", [&] { work.wait(); });
    check_says(error, "message " + number + " from rank " + std::to_string(last) +
                          " to rank 0 was not done within 50 ms");
    check(job.failure().has_value(), "failure() once a message has timed out");
    error_of(ErrorCode::kOpTimedOut, "every op after that", [&] { job.barrier().wait(); });
    signal.barrier().wait();
  }
}

}  // namespace sluice::api_test
