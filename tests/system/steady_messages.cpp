// A rank of a ring that runs until it is told to stop: `steady_messages STOP_FILE [ELEMENTS
// [START_FILE]]`. In each turn it sends a tensor to both its neighbours, receives theirs, and
// compares every bit. It prints "joined", waits for START_FILE if there is one, prints "under way"
// after the first turn, and ends with 0 some turns after rank 0 has seen STOP_FILE.
//
// It ends with 1 if an element is wrong or a counter decreases, and with 3 if the library reports
// an error, in the form of steady.hpp.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <thread>
#include <vector>

#include <sluice/sluice.hpp>

#include "tests/system/steady.hpp"

namespace {

using namespace std::chrono_literals;
using namespace sluice::steady;

using Tensor = std::vector<std::int32_t>;

std::int32_t element(std::size_t i, std::uint16_t from, int turn) {
  const bool zero = (i / 256 + from + static_cast<std::size_t>(turn)) % 3 == 0;
  return zero ? 0 : static_cast<std::int32_t>(i * 7 + from * 1'000'003u) + turn;
}

/// Element 0 is the last turn, or 0 while that is not known. It takes one turn to get from a rank
/// to the next.
class Ring {
 public:
  Ring(std::filesystem::path stop_file, std::size_t elements)
      : stop_file_(std::move(stop_file)),
        options_(sluice::JobOptions::from_environment()),
        sent_(elements),
        received_{Tensor(elements), Tensor(elements)},
        context_(sluice::ContextOptions::from_environment()),
        job_(context_, options_) {}

  int run(const std::filesystem::path& start_file) {
    say("joined");
    while (!start_file.empty() && !std::filesystem::exists(start_file))
      std::this_thread::sleep_for(1ms);
    for (int turn = 1; last_ == 0 || turn <= last_; ++turn) {
      if (!take(turn)) {
        std::fprintf(stderr, "rank %u: turn %d is wrong\n", job_.rank(), turn);
        return 1;
      }
      if (counters_fell_) {
        std::fprintf(stderr, "rank %u: counters fell\n", job_.rank());
        return 1;
      }
      if (turn == 1) say("under way");
      std::this_thread::sleep_for(1ms);  // leaves the machine to the tested job
    }
    job_.leave();
    return 0;
  }

 private:
  static void say(const char* what) {
    std::puts(what);
    std::fflush(stdout);
  }

  std::uint16_t neighbour(unsigned distance) const {
    return static_cast<std::uint16_t>((job_.rank() + distance) % job_.world_size());
  }

  /// One turn; false: an element is wrong.
  bool take(int turn) {
    if (job_.rank() == 0 && last_ == 0 && turn > 1 && std::filesystem::exists(stop_file_))
      last_ = turn + job_.world_size();
    for (std::size_t i = 1; i < sent_.size(); ++i) sent_[i] = element(i, job_.rank(), turn);
    sent_[0] = last_;
    const std::uint16_t after = neighbour(1);
    const std::uint16_t before = neighbour(job_.world_size() - 1u);
    const std::span<const std::int32_t> sent(sent_);
    const sluice::Work works[] = {
        job_.send(sent, after),
        job_.send(sent, before),
        job_.recv(std::span(received_[0]), before),
        job_.recv(std::span(received_[1]), after),
    };
    for (const sluice::Work& work : works)
      while (!work.wait_for(10ms)) look_at_counters();
    return is_from(before, turn, received_[0]) && is_from(after, turn, received_[1]);
  }

  bool is_from(std::uint16_t from, int turn, const Tensor& tensor) {
    for (std::size_t i = 1; i < tensor.size(); ++i)
      if (tensor[i] != element(i, from, turn)) return false;
    if (last_ == 0) last_ = tensor[0];
    return tensor[0] == 0 || tensor[0] == last_;
  }

  /// They only grow, even while a channel waits for its other side.
  void look_at_counters() {
    const std::uint64_t received = job_.statistics().packets_received;
    counters_fell_ |= received < packets_received_;
    packets_received_ = received;
  }

  const std::filesystem::path stop_file_;
  const sluice::JobOptions options_;  // read before a context waits for daemons
  Tensor sent_;
  Tensor received_[2];
  sluice::Context context_;
  sluice::Communicator job_;
  int last_ = 0;
  std::uint64_t packets_received_ = 0;
  bool counters_fell_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    return Ring(argv[1], argument(argc, argv, 2, 20'000)).run(argc > 3 ? argv[3] : "");
  } catch (const sluice::Error& error) {
    tell(error);
    return 3;
  }
}
