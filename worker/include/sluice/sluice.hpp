// Sluice's worker library: sparse AllReduce through streaming aggregators.
//
//   sluice::Context context(sluice::ContextOptions::from_environment());
//   sluice::Communicator job(context, sluice::JobOptions::from_environment());
//   job.all_reduce(std::span<float>(gradients)).wait();
//
// A Context is opened once per process and owns the ports, the packet memory and one progress
// thread; parts of a program that do not know of each other share one: Context::shared(). A
// Communicator is this process's membership of one job; many may share a context. Both are
// thread-safe. Every rank of a job must start the same collectives in the same order: calls from
// several threads on one communicator are ordered by when they enter it, so such callers must agree
// on an order by other means, or use a communicator each.
//
// A process that was forked from the one that opened the Context can use neither it nor what was
// made with it, nor open another: calls throw kUnavailable there, and destructors do nothing.
//
// A program needs the library of the release whose headers it was compiled with; the loader refuses
// any other. The interface for C, sluice.h, stays as it is from release to release.
//
// Errors: constructors and calls throw sluice::Error; an op that fails later reports through its
// Work. When a job aborts, an op may have succeeded on one rank and fail on another. After an error
// of the job every call on that communicator fails with the same error; make a new one to join
// again.
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <sluice/device.hpp>
#include <sluice/error.hpp>
#include <sluice/memory.hpp>
#include <sluice/statistics.hpp>
#include <sluice/types.hpp>

namespace sluice {

/// How this process reaches the aggregators, and what it may spend on that.
struct ContextOptions {
  /// One address per aggregator, in the order of their shards, the same on all ranks:
  /// "vhost:DIRECTORY" (the daemon's vhost-user directory on this machine) or "IPV4[:PORT]"
  /// (default port 4747), reached through `port`. Standbys, which take over when the aggregator is
  /// lost, follow after '|': "10.0.0.9|10.0.0.10". SLUICE_AGGREGATORS, separated by commas. Empty:
  /// all ranks are on one host, and sum among themselves in memory that they share.
  std::vector<std::string> aggregators;

  /// What host this is, for ranks that sum in memory which they share: 1..32 letters, digits, '.',
  /// '_' and '-'. Ranks with another name are of another host. Empty: this machine. SLUICE_HOST.
  std::string host;

  /// Whether this rank sums among those of its host. Off: it is a host of its own, and needs
  /// aggregators. SLUICE_HOST_LEVEL=0.
  bool host_level = true;

  /// Whether the ranks of one host read and write tensors that are not from sluice::allocate in
  /// each other's processes (process_vm_readv), if the system lets them. Off, or where it does not,
  /// such tensors are copied through memory that ranks share. SLUICE_HOST_PROCESS_VM=0.
  bool host_process_vm = true;

  /// DPDK device of the network port, e.g. "net_af_packet0,iface=veth1" or "0000:3b:00.0"; unused
  /// when every aggregator is a vhost directory. SLUICE_PORT.
  std::string port;

  /// Own address on that port with its prefix length, e.g. "10.0.0.2/24", or "10.0.0.2/24@10.0.0.1"
  /// with the gateway to aggregators of other networks. SLUICE_ADDRESS.
  std::string address;

  /// How long the Context may wait for one daemon per shard to take its vhost port; 100..600000 ms.
  /// SLUICE_CONNECT_TIMEOUT_MS.
  std::chrono::milliseconds connect_timeout{10'000};

  /// Largest IP packet in bytes, 576..9698; 0 takes the port's default (9000 over vhost, else
  /// 1500). SLUICE_MTU.
  std::uint32_t mtu = 0;

  /// VLAN of the network port, 1..4094: all frames have its 802.1Q tag, others are dropped; 0:
  /// none. SLUICE_VLAN.
  std::uint16_t vlan = 0;

  /// Packet memory in MiB, 16..1048576, or 0 to compute it: see docs/sizing.md. SLUICE_MEMORY_MIB.
  std::size_t memory_mib = 0;

  /// Whether packets carry a CRC32C, and packets from other machines must: "on", "off", or "auto",
  /// which is on if an aggregator is on the network. The same on the aggregators. SLUICE_INTEGRITY.
  std::string integrity = "auto";

  /// Use the machine's hugepages (needs some to be configured); a `port` that is a PCI device
  /// always does. SLUICE_HUGEPAGES=1.
  bool hugepages = false;

  /// "backoff" (shares cores well), "yield" or "busy-spin". SLUICE_IDLE.
  std::string idle = "backoff";

  /// "error", "warn", "info", "debug" or "trace", to standard error. SLUICE_LOG.
  std::string log_level = "warn";

  /// A file that is to tell what ops do and when: see docs/timeline.md. %r in it stands for the
  /// rank that the launcher gave this process, else for its rank in the first job it joins, and %p
  /// for the process id; without either the rank is put before the extension. Empty: none. The file
  /// is opened when the rank is known, and the constructor that cannot open it throws kUnavailable.
  /// SLUICE_TIMELINE.
  std::string timeline;

  /// Serve metrics of this process for Prometheus at http://IPV4:PORT/metrics, "[IPV4:]PORT", to
  /// whoever can reach this address; without IPV4 to this machine alone (127.0.0.1). Port 0: any;
  /// the log says at level info which. "9410+": the first port from 9410 to 9665 that is free, for
  /// several ranks of a machine. Empty: none are served. SLUICE_METRICS_LISTEN.
  std::string metrics_listen;

  /// Faults to be put into the traffic on purpose, for tests: see common/net/fault_plan.hpp,
  /// e.g. "seed=7,loss=0.01,direction=both". Empty: none. SLUICE_FAULTS.
  std::string faults;

  /// Further EAL arguments, as DPDK takes them. SLUICE_EAL_ARGS, separated by blanks.
  std::vector<std::string> eal_args;

  /// Reads the variables named above. Throws kInvalidArgument naming variable, value and range; or
  /// naming a variable that is a misspelt one of Sluice's, and the one that is meant.
  static ContextOptions from_environment();

  /// Whether there is a variable named above of that name, in lower case and without its prefix:
  /// "mtu", "connect_timeout_ms".
  static bool has(std::string_view name);

  /// Sets a member as its variable would; lists are replaced. `name` as above. Throws
  /// kInvalidArgument, with the nearest name where there is none such, and changes nothing then.
  void set(std::string_view name, const std::string& text);
};

/// A job's id on its aggregators: a number, or a name that stands for one, which is the first 4
/// bytes, little-endian, of the name's BLAKE2b-256. Two names may have one id (among n names with a
/// probability of about n^2 / 2^33): the job that is started later then fails to form, as one that
/// is started twice.
class JobId {
 public:
  JobId(std::uint32_t number = 0) : number_(number) {}

  /// Decimal digits: the number, 0..4294967295. Else a name: 1..64 printable ASCII characters
  /// without blanks, the first a letter or a digit. Throws kInvalidArgument for another text.
  JobId(std::string_view text);
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> JobId(const Text& text)
      : JobId(std::string_view(text)) {}

  std::uint32_t number() const { return number_; }
  operator std::uint32_t() const { return number_; }

  /// As it was given: the name, or the number in decimal digits.
  std::string text() const { return name_.empty() ? std::to_string(number_) : name_; }
  const std::string& name() const { return name_; }  ///< empty: it was given as a number

 private:
  std::uint32_t number_;
  std::string name_;
};

/// One job as one rank joins it. Fields marked (all) must be equal on all ranks.
struct JobOptions {
  JobId job = 0;                 ///< (all) by its number or its name. SLUICE_JOB.
  std::uint16_t rank = 0;        ///< 0..world_size-1. SLUICE_RANK, or the launcher's.
  std::uint16_t world_size = 1;  ///< (all) 1..256. SLUICE_WORLD_SIZE, or the launcher's.
  /// How many of these are on this host, or 0: it is not known. Where some are elsewhere, and there
  /// are no aggregators, the join fails at once. SLUICE_LOCAL_WORLD_SIZE, or the launcher's.
  std::uint16_t local_world_size = 0;
  std::uint16_t block_elements =
      256;                    ///< (all) elements per block, 1..16384. SLUICE_BLOCK_ELEMENTS.
  std::uint16_t streams = 0;  ///< (all) 1..1024; 0 takes the aggregator's. SLUICE_STREAMS.
  std::uint8_t history = 0;   ///< (all) results kept per stream: 2,4..64; 0 takes theirs.
                              ///< SLUICE_HISTORY.

  /// (all) The job's secret, 16..256 bytes, as its aggregators know it; empty: none. Without it
  /// nobody can join. Not kept beyond the constructor of Communicator. SLUICE_SECRET.
  std::string secret = {};
  /// A file that only its owner may read, whose first line is the secret. SLUICE_SECRET_FILE.
  std::string secret_file = {};
  /// Demands a keyed tag in every packet of the session, against those who can read and change the
  /// traffic; needs a secret. It is on for all if one rank or aggregator demands it.
  /// SLUICE_AUTHENTICATE_PACKETS.
  bool authenticate_packets = false;
  /// The same, and what packets carry, values and which blocks or keys they are of, is encrypted.
  /// SLUICE_ENCRYPT_PACKETS.
  bool encrypt_packets = false;

  /// Until all ranks have joined; 1..3600000 ms. SLUICE_JOIN_TIMEOUT_MS.
  std::chrono::milliseconds join_timeout{30'000};
  /// While a join waits it looks at this number some 20 times a second, if there is one: anything
  /// but 0 ends it with kAborted. Another thread or a signal's handler may write it, atomically. So
  /// languages that run handlers themselves let Ctrl-C end a join. It must live as long as the
  /// Communicator, whose parts look at it when they join, too.
  const int* interrupt = nullptr;
  /// Silence that means an aggregator is lost; 100..600000 ms. SLUICE_AGGREGATOR_TIMEOUT_MS.
  std::chrono::milliseconds aggregator_timeout{5'000};
  /// An op that is not done after so long ends the job: see Work::set_timeout(); 0..86400000 ms, 0:
  /// it may take as long as it takes. SLUICE_OP_TIMEOUT_MS.
  std::chrono::milliseconds op_timeout{0};
  /// Floor of the RFC 6298 time-out; 100..10000000 us. SLUICE_RETRANSMIT_TIMEOUT_MIN_US.
  std::chrono::microseconds retransmit_timeout_min{4'000};
  /// While packets take longer there and back, queues included, fewer streams run: so jobs that
  /// share a link get equal shares of it. Far above what a network without queues takes, and what
  /// ranks and aggregators without cores of their own add to it; 10..10000000 us.
  /// SLUICE_ROUND_TRIP_MAX_US.
  std::chrono::microseconds round_trip_max{5'000};

  /// Reads the variables named above; rank and world size also from torchrun, Open MPI, PMI and
  /// Slurm. Throws kInvalidArgument as ContextOptions::from_environment does.
  static JobOptions from_environment();

  static bool has(std::string_view name);                    ///< as ContextOptions::has
  void set(std::string_view name, const std::string& text);  ///< as ContextOptions::set
};

class Communicator;

/// A started op. Copies share it; dropping every copy does not cancel it. The tensors belong to
/// Sluice until it is done.
class Work {
 public:
  Work() = default;  ///< no op: valid() is false, nothing else may be called

  bool valid() const { return state_ != nullptr; }
  bool done() const;                                    ///< ended, well or with an error
  void wait() const;                                    ///< until done; throws the op's Error
  bool wait_for(std::chrono::nanoseconds bound) const;  ///< false: still going; throws as wait()
  std::optional<Error> error() const;                   ///< of an op that is done

  /// If the op is not done so long after the call that started it, the job ends for all ranks, as
  /// by Communicator::abort(), for what the others have of it is unknown. Every op fails with
  /// kOpTimedOut then, which names this one and, as far as an aggregator has told, whom it waited
  /// for. The library looks at the clock; nobody needs to wait. 0: it may take as long as it takes.
  /// This takes the place of JobOptions::op_timeout, and may differ between ranks; nothing happens
  /// to an op that is done. (wait_for() bounds one wait and ends nothing.) Throws kInvalidArgument
  /// beyond 0..86400000 ms.
  void set_timeout(std::chrono::milliseconds timeout) const;

  OpStatistics statistics() const;  ///< of an op that is done

  /// How much of it is done, 0..1: of its blocks, zero or not, so that it rises in steps of many;
  /// of a sparse sum, of the streams that carry it. For progress bars, as it takes the loop's lock.
  double progress() const;

  /// Ranks, rising, that an aggregator said it waits for when it was last asked, which is some
  /// milliseconds ago at most while the op makes no progress. Empty: none is known, or it is done.
  std::vector<std::uint16_t> stragglers() const;

  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 protected:
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  friend class CompletionQueue;
  std::shared_ptr<State> state_;
};

/// What a rank has of a sparse sum: `keys.size()` keys, each with a row of `row_elements` values,
/// one row behind the other.
struct SparseTensor {
  std::span<const std::uint64_t> keys = {};  ///< rising strictly, unless SparseOptions::combine
  const void* values = nullptr;
  ElementType type = ElementType::kFloat32;  ///< (all)
  std::uint64_t row_elements = 1;            ///< (all) 1 at least
};

/// A started sparse sum, which owns what comes of it until the last copy is gone. What it tells
/// beyond Work is of an op that has ended well; else it throws.
class SparseWork : public Work {
 public:
  SparseWork() = default;

  /// How many keys there are: those of all ranks, but for sums below the threshold.
  std::size_t size() const;

  /// Those keys, rising.
  std::span<const std::uint64_t> keys() const;
  /// The sums, a row per key; `T` is the tensor's type. Throws kInvalidArgument for another.
  template <class T>
  std::span<const T> values() const {
    const auto bytes = value_bytes(ElementTypeOf<T>::kValue);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  std::span<const std::byte> value_bytes(ElementType type) const;

  /// The same in the caller's memory, in one copy: size() keys, and a row of values for each.
  void copy_to(std::uint64_t* keys, void* values, ElementType type) const;
  /// The sums as a tensor of key_bound rows; those that no key has become 0.
  void copy_to_dense(void* tensor, std::uint64_t element_count, ElementType type) const;

  /// How many keys have a sum below the threshold: of at least a half of it, a quarter, an eighth,
  /// and less. Equal on all ranks.
  std::array<std::uint64_t, 4> rejected() const;

  using Work::Work;
};

/// A started split() or duplicate(): its op ends when every rank has called.
class SplitWork : public Work {
 public:
  SplitWork() = default;

  /// Waits for the op, and then joins this rank's part as the constructor of Communicator would.
  /// Every rank of the part must call it, once, with the Context open; the communicator that was
  /// split may be gone. Throws the op's Error, kInvalidArgument where the color was negative, and
  /// as that constructor does.
  Communicator join() const;

  using Work::Work;
};

/// Tells of ops as they end, in the order in which they end, whatever the order in which they
/// began: for programs with many ops under way, and for threads that complete requests of another
/// library. Several threads may use one queue at once. It may outlive the ops and the Context.
class CompletionQueue {
 public:
  CompletionQueue();
  ~CompletionQueue();  ///< no thread may be in a call of it; ops that are pending go on
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  /// Has next() return `tag`, which is the caller's to choose, once when the op has ended, well or
  /// with an error; at once if it has. An op may be in several queues. Throws kInvalidArgument
  /// where `work` is not valid(), or waits in this queue already, and kUnavailable in a process
  /// forked from the one that made the queue.
  void add(const Work& work, std::uint64_t tag);

  /// The tag of the op that ended first of those not returned yet. Waits for one, up to `bound`
  /// (0 or less: not at all; the largest: for ever), and drives the ops meanwhile, as Work::wait()
  /// does, unless another thread does so. Empty: none has ended until then, or interrupt() was
  /// called. Throws kUnavailable as add() does.
  std::optional<std::uint64_t> next(std::chrono::nanoseconds bound);

  /// Has one call of next() return empty, now or the next one that finds no ended op.
  void interrupt();

  /// A file descriptor, for poll() and event loops, that can be read as long as next(0ns) has a tag
  /// to return, or was interrupted; nobody is to read it but by next(). The same at each call, and
  /// closed with the queue. Whoever waits for it drives no ops: the progress thread does. Throws
  /// kUnavailable as add() does, and where there is no descriptor left.
  int descriptor();

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

/// Of collectives that reduce elements.
struct ReduceOptions {
  Reduction reduction = Reduction::kSum;

  /// (all) Elements per block in this op, 1..16384, halved until one block fits a packet; 0: the
  /// job's. As the rows of a table, say, where zero rows shall not travel.
  std::uint16_t block_elements = 0;

  /// (all) How the elements travel; but for kNone they must be fp32. Each rank's are rounded to
  /// that, to nearest with ties to even, and so is once the result of what the ranks sent, which is
  /// computed in fp32. Blocks have as many elements as without.
  ///
  /// kFloat16, kBFloat16: infinity and NaN travel as such, and what is too large becomes infinity.
  ///
  /// kInt8, kInt4: q * 2^e, with integers q of -Q .. Q, Q = 127 or 7, and an e for each block. Let
  /// m(r) be the largest magnitude in the block of rank r, and M that of the result of what the
  /// ranks sent. An element of a rank is off by m(r) / Q at most, and one of the result by another
  /// M / Q: a sum by (m(0) + ... + m(N-1) + M) / Q in all, an average by
  /// ((m(0) + ... + m(N-1)) / N + M) / Q, beside what fp32 loses in adding up. If a block holds NaN
  /// or infinity, or its sum does, the result's block is NaN in whole. What has been rounded so
  /// comes through a second time unchanged.
  Encoding encoding = Encoding::kNone;

  /// (all) Of kInt8 and kInt4. Not 0: what is rounded becomes either neighbour, and the right
  /// number in the mean; each bound above is twice as large. The random bits follow from this
  /// number, the op's, the block's and the rank's, so nothing that fails changes a result. 0: to
  /// nearest.
  std::uint64_t rounding_seed = 0;

  /// Bit b % 64 of word b / 64 tells that block b (of Communicator::block_elements(type,
  /// block_elements) elements) may be non-zero; blocks whose bit is clear must hold nothing but +0.
  /// Spares the search. Read until the op is done; ceil(blocks / 64) words, or empty to search.
  std::span<const std::uint64_t> nonzero_blocks = {};

  /// Equal on all ranks; told apart calls of equal shape in swapped order are an error then.
  std::uint64_t tag = 0;

  /// Of tensors on a device, whose place in host memory the call is given; null: they are there.
  /// In place of nonzero_blocks. Used until the op is done. See device.hpp.
  DeviceTensors* device = nullptr;
};

/// Of sums of pairs of key and row.
struct SparseOptions {
  /// Of the ranks that have the key; the average divides by world_size all the same.
  Reduction reduction = Reduction::kSum;

  /// (all) Only sums with an element of at least this magnitude are delivered, and those with NaN;
  /// 0 or more. 0: all. Not for rows that do not fit a packet.
  double threshold = 0;

  /// (all) How values travel, as ReduceOptions::encoding tells; the block that a scale is for is a
  /// *chunk*: those of this rank's keys, or of the sums delivered, that have the same
  /// key / 2^b, where 2^b rows of fp32 take 1 KiB at most, and b is 8 at most. A threshold is
  /// compared with sums of fp16 and bf16 as they travel, and with scaled ones before they are
  /// rounded.
  Encoding encoding = Encoding::kNone;

  /// (all) As ReduceOptions::rounding_seed.
  std::uint64_t rounding_seed = 0;

  /// Bytes that the keys and rows of the result may take, 8 and a row's per key: with more the op
  /// fails on every rank whose bound that is, and the job goes on.
  std::size_t result_bytes = std::size_t{1} << 30;

  /// Take keys in any order, and reduce the rows of equal keys (for the average: add them) in the
  /// order in which they come, before anything is sent. Takes a copy.
  bool combine = false;

  /// Equal on all ranks, as ReduceOptions::tag.
  std::uint64_t tag = 0;
};

/// Of what moves elements and reduces none.
struct MoveOptions {
  /// Equal on all ranks, of a message on both; told apart calls of equal shape in swapped order are
  /// an error then.
  std::uint64_t tag = 0;

  /// As ReduceOptions::device.
  DeviceTensors* device = nullptr;
};

class Context {
 public:
  /// Opens ports and memory and starts the progress thread. At most one exists at a time.
  /// Throws kInvalidArgument, kUnavailable.
  explicit Context(ContextOptions options);
  ~Context();  ///< every Communicator must be gone

  /// The context that all who ask here share, as the bindings for other languages do: opened with
  /// `options` by the first, closed when the last has let go of it. Where it is open, those
  /// settings of `options` that are neither the environment's nor the default must be as it has
  /// them, else this throws kInvalidArgument. Throws as the constructor does.
  static std::shared_ptr<Context> shared(const ContextOptions& options);

  /// Begins to write a timeline of ops that are called from now on, as ContextOptions::timeline has
  /// one from the start. Throws kInvalidArgument where there is one, or for an empty name, and
  /// kUnavailable, naming the path.
  void start_timeline(const std::string& file);
  /// Completes the file. Another may be started. Throws kInvalidArgument where there is none, and
  /// kUnavailable, naming the path, if not all could be written; there is none then either.
  void stop_timeline();

  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

class Communicator {
 public:
  /// Joins the job and returns when all ranks have. Throws kFormationFailed, kAggregatorLost,
  /// kQuota, kInvalidArgument, kUnavailable.
  Communicator(Context& context, JobOptions options);

  /// Leaves the job. With ops pending the job is aborted on all ranks.
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  std::uint16_t rank() const;
  std::uint16_t world_size() const;
  /// Of the job at its aggregators: JobOptions::job, or what split() or duplicate() has derived.
  std::uint32_t job_id() const;

  /// Elements per block of tensors of this type: JobOptions::block_elements, or `wanted` where that
  /// is not 0, halved until one block fits a packet of the session.
  std::uint32_t block_elements(ElementType type, std::uint16_t wanted = 0) const;

  /// In place: every rank's tensor becomes the reduction over all ranks. Returns at once.
  template <class T>
  Work all_reduce(std::span<T> tensor, const ReduceOptions& options = {}) {
    return all_reduce(tensor.data(), tensor.data(), tensor.size(), ElementTypeOf<T>::kValue,
                      options);
  }

  /// Out of place. `input` and `output` have equal sizes and are the same or do not overlap.
  template <class T>
  Work all_reduce(std::span<const T> input, std::span<T> output,
                  const ReduceOptions& options = {}) {
    if (input.size() != output.size())
      throw Error(ErrorCode::kInvalidArgument,
                  "all_reduce: input has " + std::to_string(input.size()) + " elements, output " +
                      std::to_string(output.size()) + "; they must be equal");
    return all_reduce(input.data(), output.data(), input.size(), ElementTypeOf<T>::kValue, options);
  }

  Work all_reduce(const void* input, void* output, std::uint64_t element_count, ElementType type,
                  const ReduceOptions& options = {});

  /// The union of all ranks' keys, with the sums of their rows. All keys are less than `key_bound`
  /// (all), 1..2^64 - 2. A rank that lacks a key adds nothing to its sum. Keys and values are only
  /// read, until the op is done. Returns at once.
  SparseWork all_reduce(const SparseTensor& tensor, std::uint64_t key_bound,
                        const SparseOptions& options = {});

  /// Every rank's tensor becomes the root's, bit for bit; the root's is only read. Returns at once.
  /// Blocks of nothing but zero bits do not travel.
  template <class T>
  Work broadcast(std::span<T> tensor, std::int32_t root, const MoveOptions& options = {}) {
    return broadcast(tensor.data(), tensor.size(), ElementTypeOf<T>::kValue, root, options);
  }

  Work broadcast(void* tensor, std::uint64_t element_count, ElementType type, std::int32_t root,
                 const MoveOptions& options = {});

  /// Every rank's output becomes the ranks' inputs one after the other, bit for bit. All inputs
  /// have the same size, and `output` has room for them all. `input` may lie in its place of
  /// `output`, else they do not overlap. Returns at once. Blocks of nothing but zero bits do not
  /// travel.
  template <class T>
  Work all_gather(std::span<const T> input, std::span<T> output, const MoveOptions& options = {}) {
    if (output.size() != input.size() * world_size())
      throw Error(ErrorCode::kInvalidArgument,
                  "all_gather: output has " + std::to_string(output.size()) + " elements, input " +
                      std::to_string(input.size()) + "; it must have world_size = " +
                      std::to_string(world_size()) + " times as many");
    const std::vector<std::uint64_t> counts(world_size(), input.size());
    return all_gather(input.data(), output.data(), counts, ElementTypeOf<T>::kValue, options);
  }

  /// The same with inputs of different sizes: `counts`, equal on all ranks, has the elements of
  /// each rank's. It is not needed any more when this returns.
  Work all_gather(const void* input, void* output, std::span<const std::uint64_t> counts,
                  ElementType type, const MoveOptions& options = {});

  /// The root's output becomes the reduction over all ranks' inputs; the other ranks' outputs are
  /// not used and may be null. Else as all_reduce.
  Work reduce(const void* input, void* output, std::uint64_t element_count, ElementType type,
              std::int32_t root, const ReduceOptions& options = {});

  /// The ranks' inputs are reduced, and each rank's output becomes its part of the result: the
  /// parts follow each other in rank order. `counts`, equal on all ranks, has the elements of each;
  /// it is not needed any more when this returns. `output` may lie in its place of `input`, else
  /// they do not overlap.
  Work reduce_scatter(const void* input, void* output, std::span<const std::uint64_t> counts,
                      ElementType type, const ReduceOptions& options = {});

  /// As all_gather, but only the root's output becomes anything; the others' may be null.
  Work gather(const void* input, void* output, std::span<const std::uint64_t> counts,
              ElementType type, std::int32_t root, const MoveOptions& options = {});

  /// Each rank's output becomes its part of the root's input, bit for bit: the parts follow each
  /// other in rank order. `counts` as above; the other ranks' inputs are not used and may be null.
  /// At the root `output` may lie in its place of `input`, else they do not overlap.
  Work scatter(const void* input, void* output, std::span<const std::uint64_t> counts,
               ElementType type, std::int32_t root, const MoveOptions& options = {});

  /// Each rank's output becomes what the ranks have for it, in rank order, bit for bit.
  /// `counts[from * world_size + to]`, equal on all ranks, has the elements that go from one to
  /// another; a rank's input has one part for each rank, in rank order. They do not overlap.
  Work all_to_all(const void* input, void* output, std::span<const std::uint64_t> counts,
                  ElementType type, const MoveOptions& options = {});

  /// Sends a tensor to rank `to`, another than this one, which receives it by recv(), bit for bit;
  /// it is only read. Returns at once; begins when both ranks have called, however long that takes
  /// within its time-out.
  /// Blocks of nothing but zero bits do not travel.
  ///
  /// Messages from one rank to another meet in the order of the calls. Element count, type and tag
  /// must be equal on both sides, else both fail with kOpMismatch. What is sent to different ranks,
  /// the two directions between two ranks, and the job's collectives do not wait for each other.
  ///
  /// The first message from one rank to another opens a channel between them, which takes 48 of the
  /// context's packet buffers and counts as a job on the aggregators, until the job is left. An
  /// error of the channel (kOpMismatch, kQuota, kNotAuthenticated) ends this rank's messages by it
  /// and no others; an error of the job ends them all.
  template <class T>
  Work send(std::span<T> tensor, std::int32_t to, const MoveOptions& options = {}) {
    return send(tensor.data(), tensor.size(), ElementTypeOf<std::remove_const_t<T>>::kValue, to,
                options);
  }

  Work send(const void* tensor, std::uint64_t element_count, ElementType type, std::int32_t to,
            const MoveOptions& options = {});

  /// Receives what rank `from`, another than this one, sends to this one: see send().
  template <class T>
  Work recv(std::span<T> tensor, std::int32_t from, const MoveOptions& options = {}) {
    return recv(tensor.data(), tensor.size(), ElementTypeOf<T>::kValue, from, options);
  }

  Work recv(void* tensor, std::uint64_t element_count, ElementType type, std::int32_t from,
            const MoveOptions& options = {});

  /// Ends when every rank has called it. Non-blocking: wait() on it.
  Work barrier();

  /// Splits the ranks into parts, as MPI_Comm_split does: SplitWork::join() gives each rank a
  /// communicator of those with its color, ordered by `key`, and by their ranks here where keys are
  /// equal. A negative color: this rank joins no part. A collective call, which returns at once.
  ///
  /// Each part is a job of its own, with these JobOptions but for rank, world size and id, and with
  /// the same secret. Its id is derived from this job's, a random number and the color. To the
  /// aggregators it is a job like any other: it counts towards their limit, and where it has a
  /// secret they look that up by its id, so they need a line "* SECRET". It takes packet buffers as
  /// any job of this context does. It lives for as long as its communicators:
  /// it may outlive this one, and a failure of one ends no other.
  SplitWork split(std::int32_t color, std::int32_t key = 0);

  /// The same ranks in another job, as MPI_Comm_dup: for a part of the program whose calls shall
  /// not have to keep an order with those of the others.
  SplitWork duplicate();

  /// Leaves the job in an orderly way and waits for it; the destructor then does nothing. Throws
  /// kAggregatorLost when no answer comes within `aggregator_timeout`, and kAborted if ops were
  /// pending: then the job is aborted on all ranks. Throws failure() if there is one.
  void leave();

  /// Ends the job for all ranks, from any thread and whatever is pending: ops fail with kAborted
  /// here, and with kRankLeft, naming this rank, on the others. `why` is for this rank's error.
  /// Does nothing where the job is over. Returns at once, but throws kUnavailable in a forked
  /// process.
  void abort(std::string_view why = {});

  /// Where an exception is why this rank leaves the job, or aborts it: says so before, and ranks
  /// that miss this one are told of it. The destructor knows by itself when an exception unwinds
  /// the stack. This is for programs that have caught it, and for other languages.
  void note_exception() noexcept;

  /// On which host each rank is. Hosts are numbered in the order in which their sums are added; on
  /// each the lowest rank comes first. A rank that sums with none of its host is on one of its own.
  std::vector<std::uint16_t> hosts() const;

  /// Ranks, rising, that pending ops wait for, as Work::stragglers() tells of one.
  std::vector<std::uint16_t> stragglers() const;

  JobStatistics statistics() const;

  /// The error that ended the job for this rank, with which every further call fails; empty: none
  /// did, or it left in an orderly way. What fails a single op, or messages alone, is not told
  /// here. From any thread; never waits.
  std::optional<Error> failure() const;

  struct Impl;

 private:
  friend class SplitWork;
  explicit Communicator(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
