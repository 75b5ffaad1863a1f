// The stages of a round, in the order in which a contribution passes through them.
#include "aggregator/stream.hpp"

namespace sluice::aggregator {

// --------------------------------------------------------------------------------- what arrives
Taken Stream::on_data(Rank w, const Packet& packet, Buffer buffer, Scope& scope) {
  const auto& data = packet.as<wire::Data>();
  const Round round{data.round};
  const bool ask = (data.flags & wire::kDataAsk) != 0;
  if (!live_) return {DropReason::kUnfitting};
  if (round > running_) return {DropReason::kFutureRound};

  Taken taken;
  taken.proves_life = acknowledge(w, round);
  if (round < running_) {  // its round is finished; `round` may be ahead of what was acknowledged
    if (ask && round == positions_[w.value])
      answer(w, round, 0, scope);
    else
      taken.drop = DropReason::kStaleRound;
  } else if (contributed_.contains(w)) {
    taken.drop = DropReason::kDuplicate;
    if (ask) send_status(w, scope);
  } else if (!outstanding_.contains(w)) {
    taken.drop = DropReason::kUnfitting;
  } else if (opening_ && scope.present.size() < scope.session.ranks) {
    taken.rank_left = true;
    return taken;
  } else if (opening_ && op_known_ && !agree(w, packet)) {
    taken.mismatch = true;
    return taken;
  } else if (resumed_ && op_known_ && contradicts(packet)) {
    taken.contradiction = true;
    return taken;
  } else if ((opening_ && !op_known_ && !begin_op(w, packet, scope.session)) || !fits(w, packet)) {
    taken.drop = DropReason::kUnfitting;
  } else {
    scope.sink.enter(Stage::kSum);
    take(w, packet, std::move(buffer), scope.counters);
    taken.proves_life = true;
  }
  try_finish(scope);
  return taken;
}

Taken Stream::on_position(Rank w, Round position, Scope& scope) {
  if (!live_) return {DropReason::kUnfitting};
  if (position > running_) return {DropReason::kFutureRound};
  if (!acknowledge(w, position)) return {DropReason::kStaleRound};
  try_finish(scope);
  return {DropReason::kNone, true};
}

Taken Stream::on_probe(Rank w, Round position, std::uint64_t have, Scope& scope) {
  ++scope.counters.probes_received;
  if (!live_) return {DropReason::kUnfitting};
  if (position > running_) return {DropReason::kFutureRound};
  const bool advanced = acknowledge(w, position);
  try_finish(scope);
  if (position != positions_[w.value]) return {DropReason::kStaleRound, advanced};
  answer(w, position, have, scope);
  return {DropReason::kNone, advanced};
}

// ------------------------------------------------------------------------------- resynchronisation
/// A worker tells which results it has applied. With all of them told, the stream goes live.
Taken Stream::on_sync(Rank w, Round applied, Scope& scope) {
  if (live_ || synced_.contains(w)) {
    send_status(w, scope);
    return {DropReason::kDuplicate};
  }
  positions_[w.value] = applied;
  synced_.insert(w);
  Taken taken{.proves_life = true};
  if (synced_.size() < scope.session.ranks) {
    send_status(w, scope);
    return taken;
  }
  running_ = kept_from_ = lowest_position();
  front_ = *std::max_element(positions_.begin(), positions_.end());
  if (front_ - running_ > scope.session.history) {
    taken.contradiction = true;
    return taken;
  }
  std::fill(positions_.begin(), positions_.end(), running_);
  live_ = resumed_ = true;
  ++scope.counters.streams_resynchronised;
  scope.present.for_each([&](Rank r) { send_status(r, scope); });
  return taken;
}

// -------------------------------------------------------------------------------- opening rounds
/// Compares the op of an opening round's packet with the op that the first rank named.
bool Stream::agree(Rank w, const Packet& packet) {
  const auto* theirs = packet.descriptor();
  if (theirs == nullptr) return true;  // none of an opening round: fits() refuses it
  const auto& shape = packet.shape();
  const struct {
    wire::Field field;
    std::uint64_t ours, theirs;
  } comparisons[] = {
      {wire::Field::kOpNumber, op_, packet.as<wire::Data>().op},
      {wire::Field::kCollective, descriptor_.collective, theirs->collective},
      {wire::Field::kOpType, descriptor_.op_type, theirs->op_type},
      {wire::Field::kReduction, descriptor_.reduction, theirs->reduction},
      {wire::Field::kRoot, descriptor_.root, theirs->root},
      {wire::Field::kElementCount, shape_.element_count, shape.element_count},
      {wire::Field::kWireType, shape_.wire_type, shape.wire_type},
      {wire::Field::kBlockElements, shape_.block_elements, shape.block_elements},
      {wire::Field::kLayout, descriptor_.layout, theirs->layout},
      {wire::Field::kTag, descriptor_.tag, theirs->tag},
  };
  for (const auto& c : comparisons) {
    if (c.ours == c.theirs) continue;
    disagreement_ = {
        wire::AbortReason::kOpMismatch, c.field, op_named_by_, w, c.ours, c.theirs, op_};
    return false;
  }
  return true;
}

/// Whether a packet of a resumed round, of the same op and shape, is about other blocks than the
/// first was.
bool Stream::contradicts(const Packet& packet) const {
  return wire::same(packet.shape(), shape_) &&
         !std::equal(packet.columns().begin(), packet.columns().end(), current_.begin(),
                     [](const wire::Column& column, BlockIndex current) {
                       return BlockIndex{column.index} == current;
                     });
}

/// Takes the op from the first packet of an opening round; it is known once that packet is taken.
/// False if this session cannot have such an op, or such blocks, on this stream.
bool Stream::begin_op(Rank w, const Packet& packet, const Session& session) {
  if (packet.descriptor() == nullptr) return false;
  const OpNumber op = packet.as<wire::Data>().op;
  const auto geometry = geometry_of(packet, op, session);
  if (!geometry) return false;
  const std::uint32_t stride = geometry->stride();
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const std::uint32_t first = geometry->first_index(id_, c++).value;
    const bool on_column = column.index == kNoBlock.value || (column.index - first) % stride == 0;
    if (resumed_ ? !on_column : column.index != first) return false;
  }
  run_op(w, packet, op, *geometry);
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns())
    current_[c++] = BlockIndex{column.index};
  return true;
}

/// The op's geometry, if the packet's shape is what it has in this session and this stream has a
/// part in it.
std::optional<Geometry> Stream::geometry_of(const Packet& packet, OpNumber op,
                                            const Session& session) const {
  const auto& shape = packet.shape();
  const auto geometry =
      Geometry::make(shape.element_count, static_cast<ElementType>(shape.wire_type),
                     shape.block_elements, session.payload_bytes, session.streams, op);
  if (!wire::same(shape, wire::shape_of(geometry)) || !geometry.uses(id_)) return std::nullopt;
  return geometry;
}

/// The op that a packet with a descriptor tells of runs here from now on.
void Stream::run_op(Rank named_by, const Packet& packet, OpNumber op, const Geometry& geometry) {
  op_ = op;
  op_named_by_ = named_by;
  descriptor_ = *packet.descriptor();
  shape_ = packet.shape();
  geometry_ = geometry;
  reduction_ =
      &numeric::block_reduction(geometry.type, static_cast<Reduction>(descriptor_.reduction));
  const std::size_t bytes =
      geometry.block_elements * element_bytes(numeric::accumulator_type(geometry.type));
  accumulator_stride_ = (bytes + numeric::kAccumulatorAlignment - 1) /
                        numeric::kAccumulatorAlignment * numeric::kAccumulatorAlignment;
}

/// Whether a contribution is one that the running round can take from this rank.
bool Stream::fits(Rank w, const Packet& packet) const {
  const auto& data = packet.as<wire::Data>();
  if (data.op != op_ || ((data.flags & wire::kDataOpening) != 0) != opening_ ||
      !wire::same(packet.shape(), shape_))
    return false;
  const std::uint32_t stride = geometry_.stride();
  const BlockIndex* next = next_.data() + std::size_t{w.value} * max_columns_;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const BlockIndex index{column.index};
    const bool present = (column.flags & wire::kColumnPresent) != 0;
    if (index != current_[c]) return false;
    if (!opening_ && present && next[c] != index) return false;  // an owner's may prove to be zero
    if (column.next != kNoBlock.value && (column.next - index.value) % stride != 0) return false;
    ++c;
  }
  return true;
}

// ---------------------------------------------------------------------------------- the running
// sum
void Stream::take(Rank w, const Packet& packet, Buffer buffer, Counters& counters) {
  ++counters.contributions;
  op_known_ = true;
  outstanding_.erase(w);
  contributed_.insert(w);
  completed_by_ = w;
  if (opening_) wants_[w.value] = *packet.descriptor();
  const auto next = next_of(w);
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns())
    next[c++] = BlockIndex{column.next};

  if (outstanding_.lowest() < w.value) {
    ++counters.contributions_held;
    held_[w.value] = {packet, std::move(buffer)};
    waiting_in_hold_.insert(w);
    return;
  }
  add(w, packet);
  while (waiting_in_hold_.lowest() < outstanding_.lowest()) {
    const Rank r{waiting_in_hold_.lowest()};
    add(r, held_[r.value].packet);
    held_[r.value] = {};
    waiting_in_hold_.erase(r);
  }
}

void Stream::add(Rank w, const Packet& packet) {
  packet.for_each_block([&](std::uint8_t c, std::span<const std::byte> block) {
    last_owner_[c] = w;
    const std::size_t elements = block.size() / element_bytes(geometry_.type);
    const auto accumulate = owners_[c]++ == 0 ? reduction_->load : reduction_->combine;
    accumulate(accumulator(c), block.data(), elements);
  });
}

// ---------------------------------------------------------------------------- finishing a round
/// Whether a position must advance before the running round may be finished.
bool Stream::is_too_far_behind(Round position, const Session& session) const {
  return running_ - position >= session.history;
}

RankSet Stream::waited_for(const Session& session) const {
  RankSet set = outstanding_;
  for (std::uint16_t r = 0; r < session.ranks; ++r)
    if (is_too_far_behind(positions_[r], session)) set.insert(Rank{r});
  return set;
}

void Stream::try_finish(Scope& scope) {
  if (!op_known_ || !outstanding_.empty()) return;
  if (is_too_far_behind(lowest_position(), scope.session)) {
    if (!std::exchange(awaited_ack_, true)) ++scope.counters.rounds_awaiting_ack;
    return;
  }
  scope.sink.enter(Stage::kBuild);
  std::array<BlockIndex, wire::kMaxColumns> storage;
  const std::span<BlockIndex> want(storage.data(), geometry_.columns);
  want_next(want, scope.session);
  Buffer result = build_result(want, scope);
  if (!result) {
    if (!std::exchange(stalled_, true)) ++scope.counters.rounds_stalled;
    return;
  }
  ++scope.counters.rounds_finished;
  if (repeating()) ++scope.counters.rounds_repeated;
  scope.sink.enter(Stage::kTransmit);
  deliver(result, scope);
  scope.sink.enter(Stage::kBuild);
  forget_results(lowest_position());
  history_[running_.value % scope.session.history] = std::move(result);
  start_round(want, scope.session);
}

Round Stream::lowest_position() const {
  return *std::min_element(positions_.begin(), positions_.end());
}

/// All workers have applied the results below `end`. Their buffers are still in the cache.
void Stream::forget_results(Round end) {
  for (; kept_from_ < end; ++kept_from_) history_[kept_from_.value % history_.size()] = Buffer();
}

/// Per column, the least next block of all ranks.
void Stream::want_next(std::span<BlockIndex> want, const Session& session) const {
  std::fill(want.begin(), want.end(), kNoBlock);
  for (std::uint16_t r = 0; r < session.ranks; ++r) {
    const BlockIndex* next = next_.data() + std::size_t{r} * max_columns_;
    for (std::size_t c = 0; c < want.size(); ++c) want[c] = std::min(want[c], next[c]);
  }
}

/// The RESULT of the running round, the same bytes for every worker; empty if the pool is.
Buffer Stream::build_result(std::span<const BlockIndex> want, Scope& scope) {
  std::size_t payload = 0;
  for (std::uint8_t c = 0; c < geometry_.columns; ++c)
    if (owners_[c] != 0) payload += geometry_.bytes_of(current_[c]);
  const std::size_t size =
      wire::block_packet_bytes<wire::Result>(geometry_.columns, false, payload);
  Buffer buffer = scope.sink.allocate(size + scope.protection.trailer_bytes());
  if (!buffer) return buffer;

  const Session& session = scope.session;
  auto packet = wire::BlockPacket<wire::Result>::begin(buffer.writable().first(size), session.job,
                                                       geometry_.columns, false);
  packet.fixed.delivery.epoch = session.epoch;
  packet.fixed.delivery.delivery_token = session.delivery_token;
  packet.fixed.delivery.stream = id_.value;
  packet.fixed.round = running_.value;
  packet.fixed.op = op_;
  packet.fixed.shape = shape_;
  packet.fixed.completing_rank = completed_by_.value;
  packet.fixed.lag = static_cast<std::uint16_t>(running_ - lowest_position());
  for (std::uint8_t c = 0; c < geometry_.columns; ++c) {
    wire::Column& column = packet.columns[c];
    column.index = current_[c].value;
    column.next = want[c].value;
    if (owners_[c] == 0) continue;
    column.flags = wire::kColumnPresent;
    const std::uint32_t elements = geometry_.elements_of(current_[c]);
    if (owners_[c] < session.ranks && reduction_->combine_zero != nullptr)
      reduction_->combine_zero(accumulator(c), elements);
    reduction_->store(packet.payload, accumulator(c), elements, session.ranks);
    packet.payload += geometry_.bytes_of(current_[c]);
  }
  protect(buffer.writable(), scope.protection);
  return buffer;
}

void Stream::deliver(const Buffer& result, Scope& scope) {
  Buffer brief;
  const bool has_sums = std::any_of(owners_.begin(), owners_.end(), [](auto n) { return n != 0; });
  scope.present.for_each([&](Rank r) {
    ++scope.counters.results_sent;
    if (has_sums && !lacks_a_sum(r)) {
      if (!brief) brief = without_sums(result, scope);
      ++scope.counters.results_withheld;
      scope.sink.send(scope.members[r.value], brief.share());
    } else {
      scope.sink.send(scope.members[r.value], result.share());
    }
  });
}

/// Of the running round: it wants one that is not, moved, its own block and no other's.
bool Stream::lacks_a_sum(Rank w) const {
  const bool moves = wire::moves(wire::Collective{descriptor_.collective});
  for (std::uint8_t c = 0; c < geometry_.columns; ++c) {
    if (owners_[c] == 0 || (moves && owners_[c] == 1 && last_owner_[c] == w)) continue;
    if (wants(wants_[w.value], geometry_, current_[c])) return true;
  }
  return false;
}

/// The same RESULT for those who lack none of its sums; itself if the pool is empty.
Buffer Stream::without_sums(const Buffer& result, Scope& scope) const {
  const std::size_t size = wire::block_packet_bytes<wire::Result>(geometry_.columns, false, 0);
  Buffer buffer = scope.sink.allocate(size + scope.protection.trailer_bytes());
  if (!buffer) return result.share();
  const auto out = buffer.writable().first(size);
  std::copy_n(result.bytes().begin(), size, out.begin());
  unprotect(out);
  auto* columns = reinterpret_cast<wire::Column*>(out.data() + sizeof(wire::Result));
  for (std::uint8_t c = 0; c < geometry_.columns; ++c)
    if (columns[c].flags != 0) columns[c].flags = wire::kColumnWithheld;
  protect(buffer.writable(), scope.protection);
  return buffer;
}

void Stream::start_round(std::span<const BlockIndex> want, const Session& session) {
  ++running_;
  stalled_ = awaited_ack_ = resumed_ = false;
  contributed_.clear();
  std::fill(owners_.begin(), owners_.end(), std::uint16_t{0});
  std::copy(want.begin(), want.end(), current_.begin());
  opening_ = std::all_of(want.begin(), want.end(), [](BlockIndex b) { return b == kNoBlock; });
  if (opening_) {
    op_known_ = false;
    outstanding_ = RankSet::first(session.ranks);
    return;
  }
  expect_owners(session);
}

/// In a round that is no opening one the owners contribute.
void Stream::expect_owners(const Session& session) {
  for (std::uint16_t r = 0; r < session.ranks; ++r) {
    const BlockIndex* next = next_.data() + std::size_t{r} * max_columns_;
    bool owner = false;
    for (std::size_t c = 0; c < geometry_.columns; ++c)
      owner |= current_[c] != kNoBlock && next[c] == current_[c];
    if (owner) outstanding_.insert(Rank{r});
  }
}

// ------------------------------------------------------------------------------- who fell behind
/// To the worker alone that awaits `from`: the results it lacks (bit i of `have`: it holds result
/// from + 1 + i), or who is waited for.
void Stream::answer(Rank w, Round from, std::uint64_t have, Scope& scope) {
  if (from == running_) return send_status(w, scope);
  for (Round r = from; r < running_; ++r) {
    const std::uint64_t ahead = r - from;
    if (ahead > 0 && ahead <= 64 && ((have >> (ahead - 1)) & 1) != 0) continue;
    ++scope.counters.results_repeated;
    scope.sink.send(scope.members[w.value], history_[r.value % scope.session.history].share());
  }
}

void Stream::send_status(Rank w, Scope& scope) {
  auto status = wire::make<wire::Status>(scope.session.job);
  status.round = running_.value;
  status.live = live_ ? 1 : 0;
  if (live_) status.waiting = waited_for(scope.session).to_bytes();
  if (send_small(w, status, scope)) ++scope.counters.statuses_sent;
}

/// A packet of fixed size, to one worker; false if the pool is empty.
template <class T>
bool Stream::send_small(Rank w, T packet, Scope& scope) {
  Buffer buffer = scope.sink.allocate(sizeof packet + scope.protection.trailer_bytes());
  if (!buffer) {
    ++scope.counters.control_packets_lost;
    return false;
  }
  packet.delivery.epoch = scope.session.epoch;
  packet.delivery.delivery_token = scope.session.delivery_token;
  packet.delivery.stream = id_.value;
  std::memcpy(buffer.writable().data(), &packet, sizeof packet);
  protect(buffer.writable(), scope.protection);
  scope.sink.send(scope.members[w.value], std::move(buffer));
  return true;
}

}  // namespace sluice::aggregator
