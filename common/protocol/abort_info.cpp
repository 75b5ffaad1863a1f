#include "common/protocol/abort_info.hpp"

#include <array>
#include <bit>
#include <charconv>
#include <optional>

#include <sluice/types.hpp>

#include "common/base/wire_type.hpp"
#include "common/protocol/build.hpp"

namespace sluice {
namespace {

using wire::AbortReason;
using wire::Field;

std::string_view name(Field field) {
  switch (field) {
    case Field::kNone:
      return "setting";
    case Field::kWorldSize:
      return "world size";
    case Field::kRank:
      return "rank";
    case Field::kStreams:
      return "number of streams";
    case Field::kBlockElements:
      return "block elements";
    case Field::kHistory:
      return "history depth";
    case Field::kShard:
      return "shard";
    case Field::kShards:
      return "number of aggregators";
    case Field::kOpNumber:
      return "op number";
    case Field::kCollective:
      return "collective";
    case Field::kOpType:
      return "element type";
    case Field::kReduction:
      return "reduction";
    case Field::kRoot:
      return "root";
    case Field::kTag:
      return "tag";
    case Field::kElementCount:
      return "element count";
    case Field::kWireType:
      return "wire type";
    case Field::kMemory:
      return "memory in MiB";
    case Field::kPayloadBytes:
      return "packet payload in bytes";
    case Field::kLayout:
      return "checksum of the ranks' counts";
    case Field::kSharedMemory:
      return "shared memory";
    case Field::kKeyBound:
      return "key bound";
    case Field::kRowElements:
      return "elements of a row";
    case Field::kThreshold:
      return "threshold";
    case Field::kRoundingSeed:
      return "rounding seed";
  }
  return "?";
}

/// With the fewest digits that identify the number.
std::string number_text(double number) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

std::string wire_type_text(WireType type) {
  if (!type.is_scaled()) return std::string(name(type.element()));
  return "scaled " + std::string(name(static_cast<Encoding>(type.code())));
}

std::string value_text(Field field, std::uint64_t value) {
  switch (field) {
    case Field::kOpType:
      return std::string(name(static_cast<ElementType>(value)));
    case Field::kWireType:
      return wire_type_text(WireType(static_cast<std::uint8_t>(value)));
    case Field::kReduction:
      return std::string(name(static_cast<Reduction>(value)));
    case Field::kCollective:
      return std::string(name(static_cast<wire::Collective>(value)));
    case Field::kThreshold:
      return number_text(std::bit_cast<double>(value));
    default:
      return std::to_string(value);
  }
}

std::string rank_text(Rank rank) {
  return "rank " + std::to_string(rank.value);
}

std::string disagreement(const AbortInfo& i) {
  return rank_text(i.rank_a) + " has " + std::string(name(i.field)) + " " +
         value_text(i.field, i.value_a) + ", " + rank_text(i.rank_b) + " has " +
         value_text(i.field, i.value_b);
}

std::string awaited_text(const AbortInfo& i) {
  if (i.value_b == 0) return "";
  const std::string first = "; it waited for " + rank_text(i.rank_b);
  return i.value_b == 1 ? first : first + " and " + std::to_string(i.value_b - 1) + " more";
}

/// Any sender can choose this value, so an unknown one adds nothing to the text.
std::string lack_text(LackOfSecret lack) {
  switch (lack) {
    case LackOfSecret::kAggregator:
      return ": it has one, and the aggregator has none for this job (its secret-file)";
    case LackOfSecret::kRank:
      return ": it has none, and the aggregator has one for this job (set SLUICE_SECRET_FILE)";
    case LackOfSecret::kNeither:
      break;
  }
  return "";
}

/// Which settings of the aggregator a limit comes from, if it comes from any.
std::string remedy_text(const AbortInfo& i) {
  switch (i.field) {
    case Field::kMemory:
      return ". Raise the aggregator's job-memory-mib, or its memory-mib where other jobs hold the "
             "rest; or ask for fewer streams, shorter history or smaller packets";
    case Field::kStreams:
      return ". Raise the aggregator's streams, or ask for fewer";
    case Field::kShard:
    case Field::kShards:
      return ". Compare the aggregator's shard and shards with the order and number of "
             "SLUICE_AGGREGATORS";
    case Field::kPayloadBytes:
      if (i.value_a < i.value_b) return "";  // a limit of the protocol
      return ". Raise the aggregator's mtu or port-mtu, or lower SLUICE_MTU";
    default:
      return "";
  }
}

/// A member can send any value. An unknown one only says that the rank has gone.
std::string departure_text(const AbortInfo& i, const std::string& by_choice) {
  const bool by_exception = i.value_a == static_cast<std::uint64_t>(Departure::kByException);
  return rank_text(i.rank_a) +
         (by_exception ? " failed: an exception ended its program, or its use of the job"
                       : by_choice);
}

/// Sets the fields that ABORT and LEAVE have in common.
template <class T>
void write(const AbortInfo& info, T& packet) {
  packet.op = info.op;
  packet.value_a = info.value_a;
  packet.value_b = info.value_b;
  packet.reason = static_cast<std::uint16_t>(info.reason);
  packet.field = static_cast<std::uint16_t>(info.field);
  packet.rank_a = info.rank_a.value;
  packet.rank_b = info.rank_b.value;
}

template <class T>
AbortInfo read(const T& packet) {
  AbortInfo info;
  info.reason = static_cast<AbortReason>(std::uint16_t{packet.reason});
  info.field = static_cast<Field>(std::uint16_t{packet.field});
  info.rank_a = Rank{packet.rank_a};
  info.rank_b = Rank{packet.rank_b};
  info.value_a = packet.value_a;
  info.value_b = packet.value_b;
  info.op = packet.op;
  return info;
}

}  // namespace

wire::Abort to_packet(const AbortInfo& info, std::uint32_t job, std::uint64_t generation,
                      std::uint64_t nonce) {
  auto packet = wire::make<wire::Abort>(job);
  packet.generation = generation;
  packet.nonce = nonce;
  write(info, packet);
  return packet;
}

AbortInfo to_info(const wire::Abort& packet) {
  return read(packet);
}

void set_cause(wire::Leave& packet, const AbortInfo& info) {
  write(info, packet);
}

AbortInfo to_info(const wire::Leave& packet) {
  return read(packet);
}

std::optional<AbortInfo> cause_of(AbortReason reason, Rank rank, Departure departure) {
  if (departure == Departure::kByChoice) return std::nullopt;
  return AbortInfo{
      .reason = reason, .rank_a = rank, .value_a = static_cast<std::uint64_t>(departure)};
}

std::string explain(const AbortInfo& i) {
  switch (i.reason) {
    case AbortReason::kRankSilent:
      return rank_text(i.rank_a) + " is declared failed: nothing was received for " +
             std::to_string(i.value_a) + " ms (liveness time-out)";
    case AbortReason::kRankDisconnected:
      if (i.field == Field::kSharedMemory)
        return rank_text(i.rank_a) + " is lost: the memory that it shares cannot be read any more";
      if (i.field == Field::kMemory)
        return rank_text(i.rank_a) +
               " is lost: its tensor cannot be read or written any more: did it free the memory "
               "of a collective that was not done?";
      if (i.field == Field::kRank) return rank_text(i.rank_a) + " is lost: its process has ended";
      return rank_text(i.rank_a) + " is lost: its local port disconnected, last heard " +
             std::to_string(i.value_a) + " ms ago";
    case AbortReason::kRankRestarted:
      return rank_text(i.rank_a) +
             " was restarted and has joined again; its earlier membership has ended";
    case AbortReason::kRankLeft:
      return departure_text(i, " left the job while other ranks still call collectives");
    case AbortReason::kRankAborted:
      return departure_text(i, " ended the job, or left it with ops pending");
    case AbortReason::kOpMismatch:
      return "ranks call different collectives: " + disagreement(i) + " (op " +
             std::to_string(i.op) + ")";
    case AbortReason::kJoinMismatch:
      return "ranks disagree about the job: " + disagreement(i);
    case AbortReason::kAbsent:
      if (i.field == Field::kSharedMemory)
        return "the job's blocks lie in shared memory, and the aggregator can read none of " +
               rank_text(i.rank_a);
      return std::to_string(i.value_a) + " of the job's ranks never joined, the first is " +
             rank_text(i.rank_a);
    case AbortReason::kCannotResume:
      return "the aggregator was restarted while the job was under way and cannot resume it";
    case AbortReason::kGenerationOver:
      return "this generation of the job has ended";
    case AbortReason::kDuplicateRank:
      return "two processes joined as " + rank_text(i.rank_a) +
             "; the first is alive and keeps the number";
    case AbortReason::kRefusedSetting:
      if (i.field == Field::kSharedMemory)
        return "the job's blocks lie in shared memory, and the aggregator cannot share any with "
               "all ranks";
      if (i.field == Field::kShards)
        return "this rank names aggregators that have " + std::to_string(i.value_a) +
               " lanes in all, and this one counts " + std::to_string(i.value_b) +
               ": its settings `shards` or `lanes` are not those of the others";
      return "the aggregator does not accept " + std::string(name(i.field)) + " " +
             std::to_string(i.value_a) + "; its limit is " + std::to_string(i.value_b) +
             remedy_text(i);
    case AbortReason::kShuttingDown:
      return "the aggregator is about to end and takes no new jobs";
    case AbortReason::kTooManyJobs:
      return "the aggregator serves its limit of " + std::to_string(i.value_b) + " jobs";
    case AbortReason::kNotAuthenticated:
      return rank_text(i.rank_a) + " did not prove the job's secret" +
             lack_text(static_cast<LackOfSecret>(i.value_a));
    case AbortReason::kAggregatorLost:
      return rank_text(i.rank_a) + " lost the connection to aggregator " +
             std::to_string(i.value_a);
    case AbortReason::kNoMemory:
      return rank_text(i.rank_a) +
             " has too few packet buffers for the job; it tells how much memory it needs";
    case AbortReason::kKicked:
      return "an operator of the aggregator ended the job";
    case AbortReason::kOpTimedOut:
      return "op " + std::to_string(i.op) + " was not done on " + rank_text(i.rank_a) + " within " +
             std::to_string(i.value_a) + " ms" + awaited_text(i);
    case AbortReason::kMessageTimedOut:
      return "message " + std::to_string(i.op) + " from " + rank_text(i.rank_a) + " to " +
             rank_text(i.rank_b) + " was not done within " + std::to_string(i.value_a) + " ms";
  }
  return "unknown reason";
}

ErrorCode error_code(const AbortInfo& i) {
  switch (i.reason) {
    case AbortReason::kRankSilent:
    case AbortReason::kRankDisconnected:
      return ErrorCode::kWorkerLost;
    case AbortReason::kRankRestarted:
      return ErrorCode::kRankRestarted;
    case AbortReason::kRankLeft:
    case AbortReason::kRankAborted:
      return ErrorCode::kRankLeft;
    case AbortReason::kOpMismatch:
      return ErrorCode::kOpMismatch;
    case AbortReason::kJoinMismatch:
    case AbortReason::kAbsent:
    case AbortReason::kDuplicateRank:
    case AbortReason::kNoMemory:
      return ErrorCode::kFormationFailed;
    case AbortReason::kNotAuthenticated:
      return ErrorCode::kNotAuthenticated;
    case AbortReason::kAggregatorLost:
    case AbortReason::kCannotResume:
    case AbortReason::kShuttingDown:
      return ErrorCode::kAggregatorLost;
    case AbortReason::kGenerationOver:
    case AbortReason::kKicked:
      return ErrorCode::kAborted;
    case AbortReason::kRefusedSetting:
    case AbortReason::kTooManyJobs:
      return ErrorCode::kQuota;
    case AbortReason::kOpTimedOut:
    case AbortReason::kMessageTimedOut:
      return ErrorCode::kOpTimedOut;
  }
  return ErrorCode::kProtocol;
}

Error to_error(const AbortInfo& info, std::string_view job) {
  std::optional<std::uint16_t> rank;
  switch (info.reason) {
    case AbortReason::kAggregatorLost:
    case AbortReason::kCannotResume:
    case AbortReason::kGenerationOver:
    case AbortReason::kKicked:
    case AbortReason::kRefusedSetting:
    case AbortReason::kShuttingDown:
    case AbortReason::kTooManyJobs:
    case AbortReason::kMessageTimedOut:
      break;
    case AbortReason::kOpTimedOut:
      if (info.value_b != 0) rank = info.rank_b.value;
      break;
    default:
      rank = info.rank_a.value;
  }
  std::optional<std::uint64_t> op;
  if (info.reason == AbortReason::kOpMismatch || info.reason == AbortReason::kOpTimedOut)
    op = info.op;
  std::optional<std::chrono::milliseconds> last_heard;
  if (info.reason == AbortReason::kRankSilent || info.reason == AbortReason::kRankDisconnected)
    last_heard = std::chrono::milliseconds(info.value_a);
  return Error(error_code(info), "job " + std::string(job) + ": " + explain(info), rank, op,
               last_heard);
}

}  // namespace sluice
