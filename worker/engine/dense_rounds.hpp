// The rounds of a dense op on one stream: for each column a current block, and this rank's own
// blocks that are not zero at and after it (rules 2 and 7 of docs/protocol.md).
#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/round_source.hpp"

namespace sluice::worker {

class DenseRounds final : public RoundSource {
 public:
  /// An op has at most `columns_max` columns.
  explicit DenseRounds(std::uint8_t columns_max) : columns_(columns_max) {}

  void begin(Operation& op, StreamId stream, const Session& session) override;
  bool owns() const override { return owns_; }
  bool has_arrived(Operation& op) const override;
  void describe(Operation& op, Contribution& mine) const override;
  void load(Operation& op, Contribution& mine, std::byte* out) override;
  void keep(const Contribution&) override {}
  bool fits(Operation& op, const Packet& packet, const Contribution& mine) const override;
  Applied apply(Operation& op, const Packet& packet, Contribution& mine) override;

  /// How much of the op is done on the stream, 0..1.
  double progress(const Operation& op, StreamId stream) const;

 private:
  struct Column {
    BlockIndex current = kNoBlock;
    BlockIndex at = kNoBlock;     ///< own first non-zero block >= current
    BlockIndex after = kNoBlock;  ///< own first non-zero block > current
    bool owned() const { return current != kNoBlock && at == current; }
  };

  BlockIndex next_behind(Operation& op, std::uint8_t c, BlockIndex b) const;
  static bool travels(Operation& op, const Column& column);
  static bool may_be_withheld(Operation& op, const Column& column, const Contribution& mine);
  static void store_own(Operation& op, const Packet& result, const Contribution& mine);

  std::vector<Column> columns_;
  std::uint32_t first_column_ = 0;  // of the stream, as the geometry counts them
  bool owns_ = false;               // a current block
};

}  // namespace sluice::worker
