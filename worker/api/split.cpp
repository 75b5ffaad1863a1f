#include "worker/api/split.hpp"

#include <algorithm>

#include "worker/api/communicator.hpp"
#include "worker/job/derived_job.hpp"

namespace sluice {

JobOptions Split::job() const {
  std::vector<std::uint16_t> members;
  for (std::uint16_t rank = 0; rank < parent.world_size; ++rank)
    if (entries[rank].color == color()) members.push_back(rank);
  std::ranges::stable_sort(members, {}, [&](std::uint16_t rank) { return entries[rank].key; });
  JobOptions options = parent;
  options.job = derived_job(parent.job, entries[0].nonce, static_cast<std::uint32_t>(color()));
  options.rank =
      static_cast<std::uint16_t>(std::ranges::find(members, parent.rank) - members.begin());
  options.world_size = static_cast<std::uint16_t>(members.size());
  options.local_world_size = 0;
  return options;
}

worker::JobLabel Split::label() const {
  const bool is_duplicate = kind == SplitKind::kDuplicate;
  const std::string number = std::to_string(color());
  const std::string part = is_duplicate ? "duplicate" : "color " + number;
  return {
      .job = std::to_string(job().job.number()) + " (" + part + " of " + parent_label.name() + ")",
      .announced_name =
          parent_label.announced_name_of_part(is_duplicate ? part : "color-" + number)};
}

namespace {

Error explained(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kNotAuthenticated:
      return with(error, secret_advice("; parts of a job are jobs"));
    case ErrorCode::kQuota:
      return with(error, "; each part of a job counts as a job there");
    default:
      return error;
  }
}

}  // namespace

Communicator SplitWork::join() const {
  wait();
  const Split& split = *state()->split;
  if (split.color() < 0)
    throw Error(ErrorCode::kInvalidArgument,
                "SplitWork::join: this rank's color is negative, so it joins no part of " +
                    split.parent_label.name());
  const auto progress = state()->progress.lock();
  if (!progress) throw Error(ErrorCode::kUnavailable, "SplitWork::join: the Context is closed");
  try {
    return Communicator(std::make_unique<Communicator::Impl>(progress, split));
  } catch (const Error& error) {
    throw explained(error);
  }
}

}  // namespace sluice
