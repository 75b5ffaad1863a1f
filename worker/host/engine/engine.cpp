#include "worker/host/engine/engine.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sluice::worker::host {
namespace {

/// A turn sums at most so many pieces, so that its caller can look at the time.
constexpr unsigned kPiecesOfTurn = 16;
/// How many blocks are sampled to decide whether a tensor is sparse. It is sparse if fewer than one
/// block in kSparseBelow is not zero. Both were measured, see docs/hosts.md.
constexpr std::uint64_t kSampledBlocks = 32;
constexpr std::uint64_t kSparseBelow = 4;

/// The name of a field of a call, and its value, as an AbortInfo has them.
struct Named {
  wire::Field field;
  std::uint64_t value;
};

std::vector<Named> common_fields(const Call& call) {
  using wire::Field;
  return {{Field::kCollective, call.collective},
          {Field::kOpType, call.type},
          {Field::kReduction, call.reduction},
          {Field::kElementCount, call.element_count},
          {Field::kBlockElements, call.block_elements},
          {Field::kWireType, call.wire_type},
          {Field::kRoot, call.root},
          {Field::kLayout, call.layout},
          {Field::kTag, call.tag},
          {Field::kRoundingSeed, call.rounding_seed}};
}

Call call_of(const OpRequest& request) {
  Call call;
  call.element_count = request.element_count;
  call.tag = request.tag;
  call.rounding_seed = request.rounding_seed;
  call.root = request.root;
  call.layout = request.layout;
  call.collective = static_cast<std::uint8_t>(request.collective);
  call.type = static_cast<std::uint8_t>(request.type);
  call.reduction = static_cast<std::uint8_t>(request.reduction);
  const bool is_encoded_later = request.encoding_between_hosts != Encoding::kNone;
  call.wire_type =
      (is_encoded_later ? WireType(request.encoding_between_hosts) : request.wire_type()).code();
  return call;
}

/// Whether any part of the rank's tensors lies in that region.
bool has_tensor_in(std::uint64_t region, const Call& call, const Shares& shares, LocalRank rank) {
  return (shares.held_bytes(rank) != 0 && call.input.region == region) ||
         (shares.wanted_bytes(rank) != 0 && call.output.region == region);
}

/// Whether the rank's tensors pass through its slots.
bool in_slots(const Call& call, const Shares& shares, LocalRank rank) {
  return has_tensor_in(0, call, shares, rank);
}

/// Whether the rank's input is its output, so that zeros of the input are there in the output, too.
bool is_in_place(const Shares& shares, LocalRank rank, std::uint64_t input, std::uint64_t output) {
  return shares.has_blocks() && shares.wants_all(rank) && input == output;
}

std::uint64_t address_of(const std::byte* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

}  // namespace

Engine::Engine(Config config, Board& board)
    : config_(std::move(config)),
      board_(board),
      remote_(board, local_ranks(), config_.sizes.slot_bytes),
      counts_(local_ranks() + 1),
      negative_zeros_(local_ranks()) {
  assert(config_.sizes.calls > 0 && config_.sizes.slots > 0 &&
         config_.sizes.blocks >= config_.sizes.slots);
  assert(config_.self < local_ranks() &&
         std::is_sorted(config_.ranks.begin(), config_.ranks.end()));
}

// ------------------------------------------------------------------------------------------ calls
OpNumber Engine::submit(const OpRequest& request, std::vector<Part> parts, bool belongs_to_last) {
  assert(!request.keyed && !request.device && (!belongs_to_last || next_number_ > 0));
  const OpNumber number = belongs_to_last ? next_number_ - 1 : next_number_++;
  SharesOptions options{
      .ranks = config_.ranks,
      .divisor = config_.divisor != 0 ? config_.divisor : static_cast<std::uint16_t>(local_ranks()),
      .op = number,
      .block_elements = block_elements(request),
      .limits = {config_.least_piece_bytes, config_.sizes.slot_bytes}};
  ops_.push_back({request, Shares(request, std::move(parts), std::move(options)), number});
  if (state_ == State::kOver) end();
  return number;
}

void Engine::set_timeout(OpNumber number, const OpTimeout& timeout) {
  for (Op& op : ops_)
    if (op.number == number) op.request.timeout = timeout;
}

/// The first op with that number.
std::deque<Engine::Op>::const_iterator Engine::find(OpNumber number) const {
  return std::find_if(ops_.begin(), ops_.end(), [&](const Op& op) { return op.number == number; });
}

void Engine::notify_begun(bool is_wanted) {
  notifies_begun_ = is_wanted;
  begun_.clear();
}

std::uint32_t Engine::block_elements(const OpRequest& request) const {
  return config_.block_elements(request.tensor_type(), request.block_elements);
}

bool Engine::is_inline(const Op& op) {
  return op.shares.bytes() <= kInlineBytes && op.shares.pieces() <= 1;
}

/// Publishes the call of the next op, unless a rank may still read the call that it replaces.
bool Engine::call_next() {
  if (called_ == first_op_ + ops_.size()) return false;
  if (called_ == call_limit_) {
    std::uint64_t finished = first_op_;
    for (LocalRank rank = 0; rank < local_ranks(); ++rank)
      finished = std::min(finished, board_.word(rank, Word::kFinished));
    call_limit_ = std::max(call_limit_, finished + config_.sizes.calls);
    if (called_ == call_limit_) return false;
  }
  Op& op = ops_[called_ - first_op_];
  Call call = call_of(op.request);
  call.block_elements = block_elements(op.request);
  call.tells_blocks = op.request.nonzero_blocks.empty() ? 0 : 1;
  call.zeros_are_there = op.request.zeros_are_there ? 1 : 0;
  if (is_inline(op)) {
    const ElementRange piece = op.shares.piece(0);
    call.inline_bytes =
        static_cast<std::uint16_t>((piece.end - piece.begin) * element_bytes(op.request.type));
    op.shares.copy_in(config_.self, piece, op.request.input, call.elements.data());
    if (call.tells_blocks != 0)
      call.blocks = op.shares.blocks_in(op.request.nonzero_blocks, call.block_elements, piece);
  } else {
    tell_places(op, call);
  }
  board_.call(called_++, call);
  return true;
}

/// Whether few of our blocks are not zero, judged by a sample. Then blocks pass faster through
/// slots, one by one, than between processes.
bool Engine::is_sparse(const Op& op) const {
  if (!op.shares.has_blocks()) return false;
  const std::uint64_t each = op.shares.block_elements(), elements = op.shares.whole().end;
  const std::uint64_t blocks = (elements + each - 1) / each;
  const std::uint64_t sampled = std::min(blocks, kSampledBlocks);
  std::uint64_t found = 0;
  for (std::uint64_t i = 0; i < sampled; ++i) {
    const std::uint64_t begin = i * blocks / sampled * each;
    bool has_negative_zero = false;
    if (blocks_of(op, {begin, std::min(begin + each, elements)}, has_negative_zero) != 0) ++found;
  }
  return found < sampled / kSparseBelow;
}

/// Which of our blocks are not zero: we search them, or the caller has given them.
std::uint64_t Engine::blocks_of(const Op& op, const ElementRange& range,
                                bool& has_negative_zero) const {
  const std::span<const std::uint64_t> bitmap = op.request.nonzero_blocks;
  return bitmap.empty() ? op.shares.find_blocks(range, op.request.input, has_negative_zero)
                        : op.shares.blocks_in(bitmap, block_elements(op.request), range);
}

/// Input and output are both in regions, both in our process, or both in slots.
void Engine::tell_places(const Op& op, Call& call) const {
  const std::uint64_t held = op.shares.held_bytes(config_.self);
  const std::uint64_t wanted = op.shares.wanted_bytes(config_.self);
  if (held != 0) call.input = config_.place_of({op.request.input, held}).value_or(Place{});
  if (wanted != 0) call.output = config_.place_of({op.request.output, wanted}).value_or(Place{});
  if (!in_slots(call, op.shares, config_.self) || op.shares.bytes() < config_.least_remote_bytes ||
      is_sparse(op))
    return;
  call.input = {Place::kInProcess, address_of(op.request.input)};
  call.output = {Place::kInProcess, address_of(op.request.output)};
}

// --------------------------------------------------------------------------------------- the sums
/// False if some rank has not called it yet.
bool Engine::begin(Op& op, Time now) {
  for (LocalRank rank = 0; rank < local_ranks(); ++rank)
    if (!board_.has_called(rank, first_op_)) return false;
  std::vector<Call> calls;
  calls.reserve(local_ranks());
  for (LocalRank rank = 0; rank < local_ranks(); ++rank)
    calls.push_back(board_.called(rank, first_op_));
  op.has_begun = true;
  if (notifies_begun_) begun_.push_back(op.number);
  op.first_piece = op.given = op.taken = pieces_ended_;
  op.own_piece = op.first_piece +
                 (config_.self + local_ranks() - op.first_piece % local_ranks()) % local_ranks();
  if (const auto why = disagreement(calls)) {
    fail(*why, now);
  } else if (is_inline(op)) {
    sum_inline(op, calls);
  } else {
    place(op, calls, now);
  }
  return true;
}

/// The first rank whose call differs from that of the lowest rank, and the field that differs.
std::optional<AbortInfo> Engine::disagreement(const std::vector<Call>& calls) const {
  const std::vector<Named> expected = common_fields(calls[0]);
  for (LocalRank rank = 1; rank < calls.size(); ++rank) {
    const std::vector<Named> found = common_fields(calls[rank]);
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i].value != expected[i].value)
        return AbortInfo{.reason = wire::AbortReason::kOpMismatch,
                         .field = found[i].field,
                         .rank_a = config_.ranks[rank],
                         .rank_b = config_.ranks[0],
                         .value_a = found[i].value,
                         .value_b = expected[i].value,
                         .op = named(ops_.front())};
  }
  return std::nullopt;
}

/// A small op has one piece at most: each rank adds what is in the calls.
void Engine::sum_inline(Op& op, const std::vector<Call>& calls) {
  const ElementRange piece = op.shares.piece(0);
  std::array<std::byte, kInlineBytes> sums;
  std::vector<Elements> of_rank;
  of_rank.reserve(calls.size());
  for (const Call& call : calls) {
    Elements& elements = of_rank.emplace_back();
    elements.input = call.elements.data();
    elements.is_piece = true;
    if (call.tells_blocks != 0) elements.blocks = call.blocks;
  }
  of_rank[config_.self].output = sums.data();
  std::vector<std::uint64_t> counts(local_ranks() + 1);
  const std::uint64_t blocks = op.shares.sum(piece, of_rank, counts);
  op.statistics.blocks_sent = counts[config_.self];
  op.statistics.blocks_received = counts.back();
  op.shares.copy_out(config_.self, piece, sums.data(), op.request.output, blocks);
  if (!op.request.found_blocks || piece.begin == piece.end) return;
  take_blocks(op, piece, blocks);
  op.has_negative_zero = op.shares.has_negative_zero(config_.self);
}

/// Finds all ranks' tensors. If nobody wants anything, a rank may have ended the op already, and
/// its tensor may not be there any more.
void Engine::place(Op& op, const std::vector<Call>& calls, Time now) {
  op.pieces = op.shares.pieces();
  if (op.pieces == 0) return;
  op.of_rank.resize(local_ranks());
  op.remote.resize(local_ranks());
  op.tells_blocks.resize(local_ranks());
  op.zeros_are_there = op.request.zeros_are_there ||
                       is_in_place(op.shares, config_.self, address_of(op.request.input),
                                   address_of(op.request.output));
  for (LocalRank rank = 0; rank < local_ranks(); ++rank) {
    if (!place(op, rank, calls[rank])) {
      look_at_peers(now);  // the rank may have ended and published why
      return fail({.reason = wire::AbortReason::kRankDisconnected,
                   .field = wire::Field::kSharedMemory,
                   .rank_a = config_.ranks[rank]},
                  now);
    }
  }
  if (uses_slots(op)) return;
  const bool takes_many = takes_sums(op) && op.pieces > config_.sizes.blocks;
  if (!takes_sums(op)) op.taken = op.end_piece();
  if (op.tells_blocks[config_.self] || takes_many) return;
  op.given = op.end_piece();
  board_.set(Word::kGiven, op.given);
}

/// False if its tensors do not lie where it says.
bool Engine::place(Op& op, LocalRank rank, const Call& call) {
  Elements& elements = op.of_rank[rank];
  const bool is_in_slots = in_slots(call, op.shares, rank);
  const bool is_in_process =
      !is_in_slots && has_tensor_in(Place::kInProcess, call, op.shares, rank);
  op.tells_blocks[rank] = call.tells_blocks != 0 || (is_in_slots && op.shares.has_blocks());
  elements.zeros_are_there = call.zeros_are_there != 0;
  elements.is_piece = is_in_slots || (is_in_process && rank != config_.self);
  if (is_in_slots) return true;
  const std::uint64_t held = op.shares.held_bytes(rank);
  const std::uint64_t wanted = op.shares.wanted_bytes(rank);
  if (!is_in_process) {
    if (held != 0) elements.input = board_.bytes_at(rank, call.input, held);
    if (wanted != 0) elements.output = board_.bytes_at(rank, call.output, wanted);
    return (held == 0 || elements.input) && (wanted == 0 || elements.output);
  }
  if (rank == config_.self) {
    if (held != 0) elements.input = op.request.input;
    if (wanted != 0) elements.output = op.request.output;
  } else {
    op.remote[rank] = {call.input.offset, call.output.offset,
                       elements.zeros_are_there ||
                           is_in_place(op.shares, rank, call.input.offset, call.output.offset)};
    if (held != 0) elements.input = remote_.elements_of(rank);
  }
  return true;
}

ElementRange Engine::range_of(const Op& op, std::uint64_t piece) {
  return op.shares.piece(piece - op.first_piece);
}

/// Whether there is room for the bitmap of the next piece, and in a slot for the piece itself.
bool Engine::may_give(const Op& op) const {
  if (op.given == op.end_piece()) return false;
  if (uses_slots(op)) return op.given < op.taken + config_.sizes.slots;
  if (takes_sums(op) && op.given >= op.taken + config_.sizes.blocks) return false;
  return op.given < op.first_piece + config_.sizes.blocks ||
         is_summed(op, op.given - config_.sizes.blocks);
}

/// Publishes which blocks of a piece are not zero. Copies those to a slot, unless other ranks read
/// them where they lie.
bool Engine::give(Op& op) {
  if (!may_give(op)) return false;
  const ElementRange range = range_of(op, op.given);
  std::uint64_t blocks = kAllBlocks;
  if (op.tells_blocks[config_.self]) {
    bool has_negative_zero = false;
    blocks = blocks_of(op, range, has_negative_zero);
    op.has_negative_zero |= has_negative_zero;
    board_.tell_blocks(op.given, blocks);
  }
  if (uses_slots(op))
    op.shares.copy_in(config_.self, range, op.request.input, board_.slot(config_.self, op.given),
                      blocks);
  board_.set(Word::kGiven, ++op.given);
  return true;
}

/// Copies a piece that others have summed out of its slot, and takes their bitmap of it.
bool Engine::take(Op& op) {
  if (op.taken == op.end_piece() || op.taken == op.given || !is_summed(op, op.taken)) return false;
  const auto by = static_cast<LocalRank>(op.taken % local_ranks());
  const ElementRange range = range_of(op, op.taken);
  const std::uint64_t blocks = board_.sums(by, op.taken);
  if (uses_slots(op))
    op.shares.copy_out(config_.self, range, board_.slot(config_.self, op.taken), op.request.output,
                       blocks, op.zeros_are_there && !op.has_negative_zero);
  if (op.request.found_blocks) take_blocks(op, range, blocks);
  ++op.taken;
  return true;
}

/// `blocks` is a bitmap of blocks as pieces have them, which may be larger than the blocks of the
/// op.
void Engine::take_blocks(const Op& op, const ElementRange& range, std::uint64_t blocks) const {
  const std::uint64_t each = op.shares.block_elements(), of_op = block_elements(op.request);
  std::vector<std::uint64_t>& nonzero = op.request.found_blocks->nonzero;
  for (std::uint64_t begin = range.begin; begin < range.end; begin += each, blocks >>= 1) {
    if ((blocks & 1) == 0) continue;
    const std::uint64_t end = std::min(begin + each, range.end);
    for (std::uint64_t b = begin / of_op; b <= (end - 1) / of_op; ++b)
      nonzero[b / 64] |= std::uint64_t{1} << (b % 64);
  }
}

/// Sums our next piece, once all ranks have given it.
bool Engine::sum_next(Op& op, Time now) {
  const std::uint64_t piece = op.own_piece;
  if (piece >= op.end_piece()) return false;
  for (LocalRank rank = 0; rank < local_ranks(); ++rank)
    if ((rank == config_.self ? op.given : board_.word(rank, Word::kGiven)) <= piece) return false;
  for (LocalRank rank = 0; rank < local_ranks(); ++rank) {
    Elements& elements = op.of_rank[rank];
    if (elements.is_piece && !op.remote[rank])
      elements.input = elements.output = board_.slot(rank, piece);
    if (op.tells_blocks[rank]) elements.blocks = board_.blocks(rank, piece);
  }
  if (!fetch(op, piece, now)) return true;
  std::byte* const own = own_sums(op, piece);
  const std::uint64_t blocks = op.shares.sum(range_of(op, piece), op.of_rank, counts_,
                                             own || !has_remote(op) ? nullptr : remote_.sums());
  if (!store(op, piece, blocks, own ? own : remote_.sums(), now)) return true;
  board_.tell_sums(piece, blocks);
  if (op.shares.has_blocks()) tell_counts(op);
  op.own_piece += local_ranks();
  board_.set(Word::kSummed, piece + 1);
  return true;
}

void Engine::tell_counts(const Op& op) {
  for (LocalRank of = 0; of <= local_ranks(); ++of) board_.tell_count(of, counts_[of]);
  for (LocalRank of = 0; of < local_ranks(); ++of)
    if (op.shares.has_negative_zero(of)) board_.tell_negative_zeros(of, ++negative_zeros_[of]);
}

bool Engine::has_remote(const Op& op) {
  return std::any_of(op.remote.begin(), op.remote.end(),
                     [](const auto& r) { return r.has_value(); });
}

/// Where the sums of a piece are in our output, if it has all of them.
std::byte* Engine::own_sums(const Op& op, std::uint64_t piece) const {
  const Elements& own = op.of_rank[config_.self];
  if (own.is_piece || !op.shares.wants_all(config_.self)) return nullptr;
  return own.output + range_of(op, piece).begin * element_bytes(op.request.type);
}

/// Copies a piece from the processes of other ranks to our memory, where it is summed. False if the
/// job has failed.
bool Engine::fetch(Op& op, std::uint64_t piece, Time now) {
  for (LocalRank rank = 0; rank < local_ranks(); ++rank) {
    if (!op.remote[rank]) continue;
    const std::uint64_t blocks = op.of_rank[rank].blocks.value_or(kAllBlocks);
    const Copied copied =
        remote_.read(op.shares, rank, *op.remote[rank], range_of(op, piece), blocks);
    if (!check_copied(rank, copied, now)) return false;
  }
  return true;
}

/// Copies the sums of a piece to the processes of other ranks. Where a rank has failed, its
/// tensor's memory may have another use by now.
bool Engine::store(Op& op, std::uint64_t piece, std::uint64_t blocks, std::byte* sums, Time now) {
  for (LocalRank rank = 0; rank < local_ranks(); ++rank) {
    if (!op.remote[rank]) continue;
    const bool takes_part = board_.word(rank, Word::kOver) == static_cast<std::uint64_t>(Over::kNo);
    const Copied copied = takes_part ? remote_.write(op.shares, rank, *op.remote[rank],
                                                     range_of(op, piece), blocks, sums)
                                     : Copied::kNotMapped;
    if (!check_copied(rank, copied, now)) return false;
  }
  return true;
}

bool Engine::check_copied(LocalRank peer, Copied copied, Time now) {
  if (copied == Copied::kAll) return true;
  look_at_peers(now);  // the rank may have failed and published why
  if (copied == Copied::kProcessGone) lost(peer, now);
  fail({.reason = wire::AbortReason::kRankDisconnected,
        .field = wire::Field::kMemory,
        .rank_a = config_.ranks[peer]},
       now);
  return false;
}

bool Engine::is_summed(const Op& op, std::uint64_t piece) const {
  const auto by = static_cast<LocalRank>(piece % local_ranks());
  return by == config_.self ? op.own_piece > piece : board_.word(by, Word::kSummed) > piece;
}

bool Engine::is_done(const Op& op) const {
  const std::uint64_t end = op.end_piece();
  if (op.taken != end) return false;
  for (std::uint64_t piece = end - std::min<std::uint64_t>(op.pieces, local_ranks()); piece < end;
       ++piece)
    if (!is_summed(op, piece)) return false;  // the last piece of each rank
  return true;
}

/// Whether the peer has done all that the op needs of it, as a rank that leaves in order has.
bool Engine::has_all_of(const Op& op, LocalRank peer) const {
  if (!op.has_begun) return called_ != first_op_ && board_.has_called(peer, first_op_);
  if (op.pieces != 0 && board_.word(peer, Word::kGiven) < op.end_piece()) return false;
  const std::uint64_t last = std::min<std::uint64_t>(op.pieces, local_ranks());
  for (std::uint64_t piece = op.end_piece() - last; piece < op.end_piece(); ++piece)
    if (piece % local_ranks() == peer && !is_summed(op, piece)) return false;
  return true;
}

/// Completes the statistics of an op. Blocks are not counted where ranks hold only parts of the
/// tensor.
void Engine::count(Op& op) {
  const std::uint32_t elements = op.shares.block_elements();
  const auto blocks_of = [&](std::uint64_t bytes) {
    const std::uint64_t block = std::uint64_t{elements} * element_bytes(op.request.type);
    return (bytes + block - 1) / block;
  };
  OpStatistics& s = op.statistics;
  s.blocks = blocks_of(op.shares.bytes());
  if (!op.shares.has_blocks()) {
    s.blocks_sent = blocks_of(op.shares.held_bytes(config_.self));
    s.blocks_received = blocks_of(op.shares.lacking_bytes(config_.self));
  } else if (op.pieces != 0) {
    std::uint64_t own = 0, sums = 0, negative_zeros = 0;
    const auto all = static_cast<LocalRank>(local_ranks());
    for (LocalRank by = 0; by < local_ranks(); ++by) {
      const bool by_us = by == config_.self;
      own += by_us ? counts_[by] : board_.count(by, config_.self);
      sums += by_us ? counts_.back() : board_.count(by, all);
      negative_zeros += by_us ? negative_zeros_[by] : board_.negative_zeros(by, config_.self);
    }
    op.has_negative_zero |=
        std::exchange(counted_negative_zeros_, negative_zeros) != negative_zeros;
    // A value of another rank may be anything.
    s.blocks_sent = std::min(own - std::exchange(counted_own_, own), s.blocks);
    s.blocks_received = std::min(sums - std::exchange(counted_sums_, sums), s.blocks);
  }
  const auto bytes_of = [&](std::uint64_t blocks, std::uint64_t most) {
    const std::size_t block = op.request.wire_type().bytes(elements);
    return std::min<std::uint64_t>(blocks * block, most);
  };
  s.bytes_sent = bytes_of(s.blocks_sent, op.shares.held_bytes(config_.self));
  s.bytes_received = bytes_of(s.blocks_received, op.shares.wanted_bytes(config_.self));
}

void Engine::complete(Op& op) {
  count(op);
  if (op.request.found_blocks) op.request.found_blocks->has_negative_zero = op.has_negative_zero;
  pieces_ended_ = op.end_piece();
  completions_.push_back({.op = op.number, .statistics = op.statistics, .error = {}});
  ++first_op_;
  ops_.pop_front();
  board_.set(Word::kFinished, first_op_);
}

bool Engine::turn(Time now) {
  if (state_ == State::kOver) return false;
  bool any = false;
  // A failure of another rank after that does not matter to an op that is done.
  if (state_ == State::kActive && !ops_.empty() && ops_.front().has_begun &&
      is_done(ops_.front())) {
    complete(ops_.front());
    any = true;
  }
  look_at_peers(now);
  if (state_ == State::kActive) end_overdue(now);
  if (state_ == State::kEnding) return end_if_alone(now) || any;
  while (call_next()) any = true;
  for (unsigned summed = 0; state_ == State::kActive && !ops_.empty();) {
    Op& op = ops_.front();
    bool some = false;
    if (!op.has_begun) {
      if (called_ == first_op_ || !begin(op, now)) break;
      any = some = true;
    }
    if (state_ != State::kActive) break;
    while (op.pieces != 0 && give(op)) some = true;
    if (sum_next(op, now)) some = true, ++summed;
    if (state_ != State::kActive) break;
    while (op.pieces != 0 && take(op)) some = true;
    if (is_done(op)) {
      complete(op);
      some = true;
    }
    any = any || some;
    if (!some || summed == kPiecesOfTurn) break;
  }
  if (state_ == State::kEnding) end_if_alone(now);
  return any;
}

// ---------------------------------------------------------------------------------------- the end
void Engine::look_at_peers(Time now) {
  for (LocalRank peer = 0; peer < local_ranks() && state_ == State::kActive; ++peer) {
    if (peer == config_.self) continue;
    switch (static_cast<Over>(board_.word(peer, Word::kOver))) {
      case Over::kNo:
        break;
      case Over::kLeft:
        if (!ops_.empty() && !has_all_of(ops_.front(), peer))
          fail({.reason = wire::AbortReason::kRankLeft,
                .rank_a = config_.ranks[peer],
                .value_a = std::min(board_.farewell(peer).value_a, kLastDeparture)},
               now);
        break;
      case Over::kFailed:
      default:
        fail(board_.farewell(peer), now);
    }
  }
}

void Engine::end_overdue(Time now) {
  for (const Op& op : ops_) {
    if (now < op.request.timeout.due) continue;
    const RankSet ranks = awaited();
    AbortInfo why{.reason = wire::AbortReason::kOpTimedOut,
                  .rank_a = config_.ranks[config_.self],
                  .value_a = static_cast<std::uint64_t>(op.request.timeout.limit.count()),
                  .value_b = ranks.size(),
                  .op = named(op)};
    if (!ranks.empty()) why.rank_b = Rank{ranks.lowest()};
    return fail(why, now);
  }
}

RankSet Engine::awaited() const {
  RankSet ranks;
  if (ops_.empty()) return ranks;
  const Op& op = ops_.front();
  const auto insert_if = [&](auto&& is_late) {
    for (LocalRank rank = 0; rank < local_ranks(); ++rank)
      if (rank != config_.self && is_late(rank)) ranks.insert(config_.ranks[rank]);
  };
  if (!op.has_begun) {
    insert_if([&](LocalRank rank) { return !board_.has_called(rank, first_op_); });
    return ranks;
  }
  for (std::uint64_t piece = op.first_piece; piece < op.end_piece(); ++piece) {
    if (is_summed(op, piece)) continue;
    insert_if([&](LocalRank rank) { return board_.word(rank, Word::kGiven) <= piece; });
    if (ranks.empty()) insert_if([&](LocalRank rank) { return piece % local_ranks() == rank; });
    break;
  }
  return ranks;
}

RankSet Engine::awaited(OpNumber number) const {
  const auto op = find(number);
  if (op == ops_.end() || op == ops_.begin()) return awaited();
  const OpNumber counted = first_op_ + static_cast<OpNumber>(op - ops_.begin());
  RankSet ranks;
  for (LocalRank rank = 0; rank < local_ranks(); ++rank)
    if (rank != config_.self && !board_.has_called(rank, counted))
      ranks.insert(config_.ranks[rank]);
  return ranks;
}

/// Measured by the pieces that we sum: the others sum theirs meanwhile.
double Engine::progress(OpNumber number) const {
  const auto op = find(number);
  if (op == ops_.end() || !op->has_begun || op->pieces == 0) return 0;
  const std::uint64_t end = std::max(op->own_piece, op->end_piece());
  return 1 - static_cast<double>(end - op->own_piece) / static_cast<double>(op->pieces);
}

Time Engine::next_deadline() const {
  if (state_ == State::kEnding) return part_due_;
  Time due = kNever;
  for (const Op& op : ops_) due = std::min(due, op.request.timeout.due);
  return due;
}

void Engine::lost(LocalRank peer, Time now) {
  const auto over = static_cast<Over>(board_.word(peer, Word::kOver));
  if (over == Over::kLeft) return;
  lost_.insert(Rank{peer});
  if (over == Over::kFailed) return fail(board_.farewell(peer), now);
  fail({.reason = wire::AbortReason::kRankDisconnected,
        .field = wire::Field::kRank,
        .rank_a = config_.ranks[peer]},
       now);
}

void Engine::leave(Time now, Departure departure) {
  if (state_ != State::kActive) return;
  const auto says = [&](wire::AbortReason reason) {
    return AbortInfo{.reason = reason,
                     .rank_a = config_.ranks[config_.self],
                     .value_a = static_cast<std::uint64_t>(departure)};
  };
  if (!ops_.empty())
    return fail(
        Error(ErrorCode::kAborted, config_.alias.name() + ": this rank left with ops pending"),
        says(wire::AbortReason::kRankAborted), now);
  state_ = State::kOver;
  board_.tell_farewell(says(wire::AbortReason::kRankLeft));
  board_.set(Word::kOver, static_cast<std::uint64_t>(Over::kLeft));
}

void Engine::abort(const Error& why, const AbortInfo& cause, Time now) {
  if (state_ == State::kActive) fail(why, cause, now);
}

void Engine::end_for(const AbortInfo& what, Time now) {
  look_at_peers(now);
  fail(what, now);
}

void Engine::fail(const AbortInfo& why, Time now) {
  if (state_ == State::kActive) fail(config_.alias.error_of(why), why, now);
}

/// From here on we access no tensor of another rank.
void Engine::fail(const Error& error, const AbortInfo& why, Time now) {
  state_ = State::kEnding;
  failure_ = error;
  abort_info_ = why;
  part_due_ = after(now, config_.part_limit);
  board_.tell_farewell(why);
  board_.set(Word::kOver, static_cast<std::uint64_t>(Over::kFailed));
}

/// Waits until no other rank can access our tensors any more.
bool Engine::end_if_alone(Time now) {
  for (LocalRank peer = 0; peer < local_ranks() && !ops_.empty(); ++peer) {
    if (peer == config_.self || lost_.contains(Rank{peer}) ||
        board_.word(peer, Word::kOver) != static_cast<std::uint64_t>(Over::kNo))
      continue;
    if (now < part_due_) return false;
    board_.part();
    break;
  }
  state_ = State::kOver;
  end();
  return true;
}

void Engine::end() {
  const Error left(ErrorCode::kAborted, config_.alias.name() + ": this rank has left");
  for (; !ops_.empty(); ops_.pop_front(), ++first_op_)
    completions_.push_back({.op = ops_.front().number,
                            .statistics = ops_.front().statistics,
                            .error = failure_.value_or(left).of_op(ops_.front().number)});
}

}  // namespace sluice::worker::host
