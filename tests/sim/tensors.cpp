#include "tests/sim/tensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include "tests/sim/bug.hpp"
#include "tests/sim/random.hpp"

namespace sluice::sim {

using wire::Collective;

namespace {

// --------------------------------------------------------------------------- 16-bit floats, scalar
float widen(Float16 half) {
  const int exponent = (half.bits >> 10) & 31;
  const int fraction = half.bits & 1023;
  const float sign = (half.bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction != 0 ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}
float widen(BFloat16 half) {
  return std::bit_cast<float>(std::uint32_t{half.bits} << 16);
}

/// `value` in units of 2^exponent, as an integer: rounded to nearest, ties to even.
std::uint32_t units(double value, int exponent) {
  return static_cast<std::uint32_t>(std::nearbyint(std::ldexp(value, -exponent)));
}

Float16 narrow(float value, Float16) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) return {0x7e00};
  const double size = std::fabs(static_cast<double>(value));
  if (size >= 65520.0) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  // The addition of the fraction with its hidden bit carries into the exponent if it must.
  const std::uint32_t bits =
      static_cast<std::uint32_t>(exponent + 14) * 1024 + units(size, exponent - 10);
  return {static_cast<std::uint16_t>(sign | bits)};
}
BFloat16 narrow(float value, BFloat16) {
  if (std::isnan(value)) return {0x7fc0};
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t half = bits & 0xffff;
  std::uint32_t upper = bits >> 16;
  if (half > 0x8000 || (half == 0x8000 && (upper & 1) != 0)) ++upper;
  return {static_cast<std::uint16_t>(upper)};
}

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <class T>
auto load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  if constexpr (kIsHalf<T>)
    return widen(value);
  else
    return value;
}

template <class A>
bool is_nan(A value) {
  if constexpr (std::is_floating_point_v<A>)
    return std::isnan(value);
  else
    return false;
}

template <class A>
A combine(Reduction reduction, A acc, A in) {
  switch (reduction) {
    case Reduction::kMin:
      return in < acc || is_nan(in) ? in : acc;
    case Reduction::kMax:
      return in > acc || is_nan(in) ? in : acc;
    default:
      break;
  }
  if constexpr (std::is_integral_v<A>) {
    const auto a = static_cast<std::uint64_t>(acc);
    const auto b = static_cast<std::uint64_t>(in);
    return static_cast<A>(reduction == Reduction::kProduct  ? a * b
                          : reduction == Reduction::kBitAnd ? a & b
                          : reduction == Reduction::kBitOr  ? a | b
                          : reduction == Reduction::kBitXor ? a ^ b
                                                            : a + b);
  } else {
    return reduction == Reduction::kProduct ? acc * in : acc + in;
  }
}

/// A reduction of floats has no -0.
template <class T, class A>
void store(std::byte* at, A value) {
  if constexpr (kIsHalf<T>) {
    T half = narrow(value, T{});
    if (half.bits == 0x8000) half.bits = 0;
    std::memcpy(at, &half, sizeof half);
  } else {
    if (value == 0) value = 0;
    std::memcpy(at, &value, sizeof value);
  }
}

__extension__ using Int128 = __int128;

/// It holds integers without wrapping.
template <class T>
void average_element(const std::vector<const std::byte*>& owners, unsigned ranks,
                     std::size_t offset, std::byte* out) {
  using A = decltype(load<T>(out));
  using Total = std::conditional_t<std::is_integral_v<A>, Int128, A>;
  Total total = load<T>(owners[0] + offset);
  for (std::size_t i = 1; i < owners.size(); ++i) total += load<T>(owners[i] + offset);
  store<T>(out + offset, static_cast<A>(total / static_cast<Total>(ranks)));
}

template <class T>
void reduce_element(const OpSpec& op, const std::vector<const std::byte*>& owners, unsigned ranks,
                    std::size_t offset, std::byte* out) {
  if (op.reduction == Reduction::kAverage) return average_element<T>(owners, ranks, offset, out);
  auto acc = load<T>(owners[0] + offset);
  using A = decltype(acc);
  for (std::size_t i = 1; i < owners.size(); ++i)
    acc = combine<A>(op.reduction, acc, load<T>(owners[i] + offset));
  if (op.reduction != Reduction::kSum && owners.size() < ranks && !is_keyed(op))
    acc = combine<A>(op.reduction, acc, A{});
  store<T>(out + offset, acc);
}

// A table, as std::pow took a quarter of the simulator's time.
constexpr std::array kMagnitudes = {1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1e0,
                                    1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9};

/// A value that is not zero.
template <class T>
T random_value(Random& random, bool nan_allowed) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random.next() | 1);
  } else if constexpr (kIsHalf<T>) {
    T value;
    const unsigned exponent_bits = std::is_same_v<T, Float16> ? 10 : 7;
    const auto highest = static_cast<std::uint16_t>(std::is_same_v<T, Float16> ? 30 : 200);
    value.bits = static_cast<std::uint16_t>(random.next() & 0x8000);
    value.bits = static_cast<std::uint16_t>(value.bits | (random.below(highest) << exponent_bits));
    value.bits =
        static_cast<std::uint16_t>(value.bits | random.between(1, (1u << exponent_bits) - 1));
    if (nan_allowed && random.chance(0.02)) value = narrow(std::nanf(""), T{});
    return value;
  } else {
    if (nan_allowed && random.chance(0.02)) return static_cast<T>(std::nan(""));
    const double size = random.uniform(0.1, 1) * kMagnitudes[random.below(kMagnitudes.size())];
    return static_cast<T>(random.chance(0.5) ? size : -size);
  }
}

template <class T>
void fill_block(Random& random, std::byte* at, std::uint64_t count, bool nan_allowed) {
  const bool nearly_zero = random.chance(0.3);
  const std::uint64_t certain = random.below(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i != certain && random.chance(nearly_zero ? 0.95 : 0.1)) continue;
    const T value = random_value<T>(random, nan_allowed);
    std::memcpy(at + i * sizeof(T), &value, sizeof value);
  }
}

/// Replaces values that are not zero by numbers of about one magnitude.
void even_out(Random& random, std::byte* at, std::uint64_t count) {
  if (random.chance(0.3)) return;
  const int exponent = random.chance(0.5) ? 0 : static_cast<int>(random.below(269)) - 140;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (load<float>(at + i * sizeof(float)) == 0) continue;
    const auto size = static_cast<float>(std::ldexp(random.uniform(0.1, 1), exponent));
    const float value = random.chance(0.5) ? size : -size;
    std::memcpy(at + i * sizeof value, &value, sizeof value);
  }
}

/// Makes some elements of a zero block -0.
void strew_negative_zeros(Random& random, std::byte* at, std::uint64_t count, std::size_t size) {
  for (std::uint64_t i = 0; i < count; ++i)
    if (random.chance(0.2)) at[i * size + size - 1] = std::byte{0x80};
}

template <class F>
void with_type(ElementType type, F&& f) {
  switch (type) {
    case ElementType::kFloat32:
      return f(float{});
    case ElementType::kFloat64:
      return f(double{});
    case ElementType::kFloat16:
      return f(Float16{});
    case ElementType::kBFloat16:
      return f(BFloat16{});
    case ElementType::kInt32:
      return f(std::int32_t{});
    case ElementType::kInt64:
      return f(std::int64_t{});
    case ElementType::kInt8:
      return f(std::int8_t{});
    case ElementType::kUInt8:
      return f(std::uint8_t{});
    case ElementType::kInt16:
      return f(std::int16_t{});
  }
}

/// The type of the data: what is moved can have any bits.
ElementType data_type(const OpSpec& op) {
  if (!moves(op)) return op.type;
  switch (element_bytes(op.type)) {
    case 1:
      return ElementType::kUInt8;
    case 2:
      return ElementType::kInt16;
    case 4:
      return ElementType::kInt32;
    default:
      return ElementType::kInt64;
  }
}

double density_of(const OpSpec& op, unsigned rank) {
  if (op.lone_owner >= 0) return static_cast<unsigned>(op.lone_owner) == rank ? 0.8 : 0.02;
  if (op.density >= 0) return op.density;
  Random own(derive(op.seed, 1000 + rank));
  return own.pick({0.0, 0.05, 0.3, 1.0});
}

}  // namespace

namespace {

Range part(const OpSpec& op, std::size_t index) {
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < index; ++i) begin += op.counts[i];
  return {begin, begin + op.counts[index]};
}

}  // namespace

Range held_by(const OpSpec& op, unsigned rank, unsigned ranks) {
  const Range whole{0, op.element_count};
  switch (op.collective) {
    case Collective::kBroadcast:
    case Collective::kScatter:
      return rank == op.root ? whole : Range{};
    case Collective::kGather:
    case Collective::kAllGather:
      return part(op, rank);
    case Collective::kAllToAll:
      return {part(op, rank * ranks).begin, part(op, rank * ranks + ranks - 1).end};
    default:
      return whole;
  }
}

std::vector<Range> wanted_by(const OpSpec& op, unsigned rank, unsigned ranks) {
  const Range whole{0, op.element_count};
  switch (op.collective) {
    case Collective::kReduce:
    case Collective::kGather:
      return rank == op.root ? std::vector{whole} : std::vector<Range>{};
    case Collective::kBroadcast:
      return rank == op.root ? std::vector<Range>{} : std::vector{whole};
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return {part(op, rank)};
    case Collective::kAllToAll: {
      std::vector<Range> wanted;
      for (unsigned from = 0; from < ranks; ++from) wanted.push_back(part(op, from * ranks + rank));
      return wanted;
    }
    default:
      return {whole};
  }
}

std::vector<std::byte> pick(std::span<const std::byte> tensor, const std::vector<Range>& ranges,
                            ElementType type) {
  std::vector<std::byte> picked;
  const std::size_t size = element_bytes(type);
  for (const Range& range : ranges) {
    const auto bytes = tensor.subspan(range.begin * size, (range.end - range.begin) * size);
    picked.insert(picked.end(), bytes.begin(), bytes.end());
  }
  return picked;
}

void put(std::span<const std::byte> picked, const std::vector<Range>& ranges, ElementType type,
         std::span<std::byte> tensor) {
  const std::size_t size = element_bytes(type);
  for (const Range& range : ranges) {
    const auto bytes = picked.first((range.end - range.begin) * size);
    std::copy(bytes.begin(), bytes.end(),
              tensor.begin() + static_cast<std::ptrdiff_t>(range.begin * size));
    picked = picked.subspan(bytes.size());
  }
}

bool moves(const OpSpec& op) {
  switch (op.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter:
    case Collective::kBarrier:
    case Collective::kSparseAllReduce:
      return false;
    default:
      return true;
  }
}

Tensor make_tensor(const OpSpec& op, unsigned rank, unsigned ranks, std::uint32_t block_elements) {
  const std::size_t size = element_bytes(op.type);
  const std::uint64_t blocks = (op.element_count + block_elements - 1) / block_elements;
  Random random(derive(op.seed, rank));
  Random places(derive(op.seed, op.overlap ? ranks : rank + 2000));
  const ElementType type = data_type(op);
  const Range held = held_by(op, rank, ranks);
  const bool negative_zeros = is_float(type) && random.chance(0.3);
  const bool claims = !moves(op) && random.chance(0.3);
  const bool nan_allowed = op.reduction == Reduction::kMin || op.reduction == Reduction::kMax ||
                           op.encoding != Encoding::kNone;
  Tensor tensor;
  tensor.in_place = random.chance(0.5) && op.collective != Collective::kAllToAll;
  if (op.collective == Collective::kBroadcast) tensor.in_place = true;
  tensor.data.resize(op.element_count * size);
  tensor.travels.resize(blocks);
  if (claims) tensor.bitmap.resize((blocks + 63) / 64);
  for (std::uint64_t b = 0; b < blocks; ++b) {
    const std::uint64_t end = std::min<std::uint64_t>((b + 1) * block_elements, op.element_count);
    const std::uint64_t from = std::max(held.begin, b * block_elements);
    const std::uint64_t to = std::min(held.end, end);
    if (from >= to) continue;
    const std::uint64_t count = to - from;
    std::byte* at = tensor.data.data() + from * size;
    const bool partly = from != b * block_elements || to != end;  // then it travels in any case
    tensor.travels[b] = partly;
    const bool nonzero = places.chance(density_of(op, op.overlap ? 0 : rank));
    if (negative_zeros && (nonzero || !claims)) strew_negative_zeros(random, at, count, size);
    if (nonzero) {
      const bool is_mostly_finite = is_scaled(op.encoding) && !random.chance(0.05);
      const bool with_nan = nan_allowed && !is_mostly_finite;
      with_type(type, [&](auto t) { fill_block<decltype(t)>(random, at, count, with_nan); });
      if (is_mostly_finite) even_out(random, at, count);
      tensor.travels[b] = true;
    } else if (claims) {
      tensor.travels[b] = random.chance(0.1);  // the bitmap may have more bits than needed
    }
    if (claims && tensor.travels[b]) tensor.bitmap[b / 64] |= std::uint64_t{1} << (b % 64);
  }
  return tensor;
}

std::vector<bool> blocks_of(const std::vector<Range>& ranges, std::size_t blocks,
                            std::uint32_t block_elements) {
  std::vector<bool> has(blocks);
  for (const Range& range : ranges) {
    if (range.begin == range.end) continue;
    const std::uint64_t last = (range.end - 1) / block_elements;
    for (std::uint64_t block = range.begin / block_elements; block <= last; ++block)
      has[block] = true;
  }
  return has;
}

void draw_encoding(Random& random, OpSpec& op) {
  if (op.type != ElementType::kFloat32 || moves(op) || random.chance(0.3)) return;
  op.encoding =
      random.pick({Encoding::kFloat16, Encoding::kBFloat16, Encoding::kInt8, Encoding::kInt4});
  if (is_scaled(op.encoding) && random.chance(0.5)) op.rounding_seed = random.next() | 1;
}

// ---------------------------------------------------------------------------------- low precision
namespace {

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 33) * 0xff51'afd7'ed55'8ccdu;
  x = (x ^ x >> 33) * 0xc4ce'b9fe'1a85'ec53u;
  return x ^ x >> 33;
}

/// A number between 0 and 1 for element i of a block.
double chance_of(const OpSpec& op, const Rounder& rounder, std::size_t i) {
  const std::uint64_t before = mixed(mixed(op.rounding_seed) + op.number);
  const auto key = static_cast<std::uint32_t>(mixed(before + (rounder.by << 32) + rounder.block));
  std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9e37'79b9u + key;
  x = (x ^ x >> 16) * 0x7feb'352du;
  x = (x ^ x >> 15) * 0x846c'a68bu;
  x ^= x >> 16;
  return static_cast<double>(x >> 8 | 1) / 0x1p24;
}

int most_of(const OpSpec& op) {
  return op.encoding == Encoding::kInt8 ? 127 : 7;
}

/// The largest magnitude; NaN if an element is not finite.
double largest(std::span<const std::byte> block) {
  double most = 0;
  for (std::size_t i = 0; i < block.size(); i += sizeof(float)) {
    const double size = std::fabs(static_cast<double>(load<float>(&block[i])));
    if (!std::isfinite(size)) return std::nan("");
    most = std::max(most, size);
  }
  return most;
}

/// Changes a block into what arrives after scaling.
void quantize(const OpSpec& op, const Rounder& rounder, std::span<std::byte> block) {
  const double size = largest(block);
  const int most = most_of(op);
  int scale = -149;
  while (std::ldexp(most, scale) < size && std::isfinite(std::ldexp(float(most), scale + 1)))
    ++scale;
  for (std::size_t i = 0; i < block.size(); i += sizeof(float)) {
    const auto value = static_cast<double>(load<float>(&block[i]));
    const double units = std::ldexp(std::fabs(value), -scale);
    double number = std::nearbyint(units);
    if (op.rounding_seed != 0) {
      const double below = std::floor(units);
      number = below + (chance_of(op, rounder, i / sizeof(float)) < units - below ? 1 : 0);
    }
    number = std::copysign(std::ldexp(std::min<double>(number, most), scale), value);
    store<float>(&block[i], static_cast<float>(std::isnan(size) ? size : number));
  }
}

}  // namespace

std::vector<std::byte> travelled(const OpSpec& op, const Rounder& rounder,
                                 std::span<const std::byte> block) {
  std::vector<std::byte> arrived(block.begin(), block.end());
  if (op.encoding == Encoding::kNone) return arrived;
  if (is_scaled(op.encoding)) {
    quantize(op, rounder, arrived);
    return arrived;
  }
  for (std::size_t i = 0; i < block.size(); i += sizeof(float)) {
    const auto value = load<float>(&block[i]);
    if (op.encoding == Encoding::kFloat16)
      store<float>(&arrived[i], widen(narrow(value, Float16{})));
    else if (op.encoding == Encoding::kBFloat16)
      store<float>(&arrived[i], widen(narrow(value, BFloat16{})));
  }
  return arrived;
}

namespace {

/// Checks the promise of the public header: how near a block of a sum or an average is to the exact
/// result of what the ranks had.
void check_bound(const OpSpec& op, unsigned ranks, std::span<const std::span<const std::byte>> had,
                 std::span<const std::byte> exact_of_sent, std::span<const std::byte> got) {
  const bool is_average = op.reduction == Reduction::kAverage;
  if (!is_scaled(op.encoding) || (!is_average && op.reduction != Reduction::kSum)) return;
  const double result = largest(exact_of_sent);
  double sizes = 0;
  for (const auto& block : had) sizes += largest(block);
  if (std::isnan(result) || std::isnan(sizes)) return;
  const double divisor = is_average ? ranks : 1;
  const double fp32 = 0x1p-22 * (ranks + 1) * sizes + 0x1p-148;
  const double bound = (sizes / divisor + result) / most_of(op) * (op.rounding_seed != 0 ? 2 : 1);
  for (std::size_t i = 0; i < got.size(); i += sizeof(float)) {
    double exact = 0;
    for (const auto& block : had) exact += static_cast<double>(load<float>(&block[i]));
    const double off = static_cast<double>(load<float>(&got[i])) - exact / divisor;
    require(std::fabs(off) <= bound + fp32, "a sum of scaled blocks is not within its bound");
  }
}

}  // namespace

namespace {

/// `ranks` is how many have a tensor; an average divides by `divisor`.
Outcome reduce(const OpSpec& op, std::span<const Tensor> tensors, unsigned divisor,
               std::uint32_t block_elements) {
  const auto ranks = static_cast<unsigned>(tensors.size());
  const unsigned of = op.reduction == Reduction::kAverage ? divisor : ranks;
  const std::size_t size = element_bytes(op.type);
  Outcome outcome;
  outcome.data.resize(op.element_count * size);
  outcome.travels.resize(tensors[0].travels.size());
  for (std::size_t b = 0; b < tensors[0].travels.size(); ++b) {
    const std::size_t begin = b * block_elements * size;
    const std::size_t bytes = std::min(block_elements * size, outcome.data.size() - begin);
    std::vector<std::span<const std::byte>> had;
    std::vector<std::vector<std::byte>> blocks;
    for (unsigned r = 0; r < ranks; ++r) {
      if (!tensors[r].travels[b]) continue;
      had.push_back(std::span(tensors[r].data).subspan(begin, bytes));
      blocks.push_back(travelled(op, {.block = b, .by = r}, had.back()));
    }
    if (blocks.empty()) continue;
    outcome.travels[b] = true;
    std::vector<const std::byte*> owners;
    for (const auto& block : blocks) owners.push_back(block.data());
    std::vector<std::byte> sum(bytes);
    with_type(data_type(op), [&](auto t) {
      for (std::size_t i = 0; i < bytes; i += size)
        reduce_element<decltype(t)>(op, owners, of, i, sum.data());
    });
    const auto rounded = travelled(op, {.block = b}, sum);
    check_bound(op, of, had, sum, rounded);
    std::ranges::copy(rounded, outcome.data.data() + begin);
  }
  return outcome;
}

}  // namespace

Outcome reduce(const OpSpec& op, unsigned ranks, std::uint32_t block_elements) {
  std::vector<Tensor> tensors;
  for (unsigned r = 0; r < ranks; ++r) tensors.push_back(make_tensor(op, r, ranks, block_elements));
  return reduce(op, tensors, ranks, block_elements);
}

// ------------------------------------------------------------------------------------------ hosts
HostPlan::HostPlan(const std::vector<std::uint64_t>& hosts) : host_of_(hosts.size()) {
  for (unsigned rank = 0; rank < hosts.size(); ++rank) {
    std::size_t host = ranks_of_.size();
    for (unsigned before = 0; before < rank && hosts[rank] != 0; ++before)
      if (hosts[before] == hosts[rank]) host = host_of_[before];
    if (host == ranks_of_.size()) ranks_of_.emplace_back();
    ranks_of_[host].push_back(rank);
    host_of_[rank] = host;
  }
}

std::size_t HostPlan::rails() const {
  std::size_t rails = ranks_of_[0].size();
  for (const auto& ranks : ranks_of_) rails = std::min(rails, ranks.size());
  return rails;
}

std::vector<bool> HostPlan::share_of(unsigned rank, std::size_t blocks, std::size_t chunks) const {
  const auto& peers = ranks_of_[host_of_[rank]];
  const auto number = static_cast<std::size_t>(std::ranges::find(peers, rank) - peers.begin());
  const auto in_parts = [](std::size_t all, std::size_t parts, std::size_t part) {
    return all / parts + (part < all % parts ? 1 : 0);
  };
  std::vector<bool> share;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t of_chunk = in_parts(blocks, chunks, chunk);
    for (std::size_t rail = 0; rail < rails(); ++rail)
      share.insert(share.end(), in_parts(of_chunk, rails(), rail), rail == number);
  }
  return share;
}

bool sums_by_hosts(const OpSpec& op) {
  return op.reduction != Reduction::kAverage || is_float(op.type);
}

namespace {

/// A host's tensor: the blocks that travel are those that are not zero, and those of which it holds
/// only a part.
Tensor sum_of_host(const OpSpec& op, const HostPlan& hosts, std::size_t host,
                   std::uint32_t block_elements) {
  OpSpec on_host = op;  // only what travels is encoded
  on_host.encoding = Encoding::kNone;
  std::vector<Tensor> tensors;
  Range held;
  for (const unsigned rank : hosts.ranks_of(host)) {
    const Range own = held_by(op, rank, hosts.ranks());
    if (own.begin != own.end)
      held = held.begin == held.end
                 ? own
                 : Range{std::min(held.begin, own.begin), std::max(held.end, own.end)};
    tensors.push_back(make_tensor(op, rank, hosts.ranks(), block_elements));
  }
  Tensor sum;
  sum.data = reduce(on_host, tensors, hosts.ranks(), block_elements).data;
  const std::size_t size = element_bytes(op.type);
  sum.travels.resize(tensors[0].travels.size());
  for (std::size_t b = 0; b < sum.travels.size(); ++b) {
    const std::uint64_t begin = b * block_elements;
    const std::uint64_t end = std::min<std::uint64_t>(begin + block_elements, op.element_count);
    const auto bytes = std::span(sum.data).subspan(begin * size, (end - begin) * size);
    const bool has_some = std::max(begin, held.begin) < std::min(end, held.end);
    const bool has_all = held.begin <= begin && end <= held.end;
    sum.travels[b] = has_some && (!has_all || std::ranges::any_of(bytes, [](std::byte byte) {
                       return byte != std::byte{};
                     }));
  }
  return sum;
}

}  // namespace

Outcome reduce_by_hosts(const OpSpec& op, const HostPlan& hosts, std::uint32_t block_elements) {
  std::vector<Tensor> sums;
  for (std::size_t host = 0; host < hosts.hosts(); ++host)
    sums.push_back(sum_of_host(op, hosts, host, block_elements));
  if (hosts.hosts() == 1) {
    std::vector<Tensor> tensors;
    for (unsigned r = 0; r < hosts.ranks(); ++r)
      tensors.push_back(make_tensor(op, r, hosts.ranks(), block_elements));
    return reduce(op, tensors, hosts.ranks(), block_elements);
  }
  OpSpec between = op;
  if (op.reduction == Reduction::kAverage) between.reduction = Reduction::kSum;
  Outcome outcome = reduce(between, sums, hosts.ranks(), block_elements);
  for (const Tensor& sum : sums) outcome.of_host.push_back(sum.travels);
  return outcome;
}

// ----------------------------------------------------------------------------------- keyed pairs
namespace {

/// The keys of which each rank has some.
std::vector<std::uint64_t> candidates(const OpSpec& op) {
  const std::uint64_t wanted = op.element_count / op.row_elements;
  std::vector<std::uint64_t> keys;
  if (op.key_bound <= 2 * wanted) {
    for (std::uint64_t key = 0; key < op.key_bound; ++key) keys.push_back(key);
    return keys;
  }
  Random random(derive(op.seed, 3000));
  const bool hot = random.chance(0.3);  // many keys in a small range
  const std::uint64_t begin = hot ? random.below(op.key_bound - 2 * wanted) : 0;
  for (std::uint64_t i = 0; i < wanted; ++i)
    keys.push_back(hot && random.chance(0.9) ? begin + random.below(2 * wanted)
                                             : random.below(op.key_bound));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

/// The largest magnitude in a row; NaN if there is a NaN.
double magnitude(const OpSpec& op, const std::byte* row) {
  double most = 0;
  with_type(op.type, [&](auto t) {
    using T = decltype(t);
    for (std::size_t i = 0; i < op.row_elements; ++i) {
      const auto value = load<T>(row + i * sizeof(T));
      if (is_nan(value) || std::isnan(most))
        most = std::nan("");
      else
        most = std::max(most, std::fabs(static_cast<double>(value)));
    }
  });
  return most;
}

}  // namespace

Pairs make_pairs(const OpSpec& op, unsigned rank) {
  Random random(derive(op.seed, rank));
  const bool is_finite = is_scaled(op.encoding) && !random.chance(0.05);
  const bool nan_allowed = (op.reduction == Reduction::kMin || op.reduction == Reduction::kMax ||
                            op.encoding != Encoding::kNone) &&
                           !is_finite;
  const std::size_t row_bytes = op.row_elements * element_bytes(op.type);
  const double density = density_of(op, rank);
  Pairs pairs;
  for (const std::uint64_t key : candidates(op)) {
    if (!random.chance(density)) continue;
    pairs.keys.push_back(key);
    pairs.rows.resize(pairs.rows.size() + row_bytes);
    std::byte* const row = pairs.rows.data() + pairs.rows.size() - row_bytes;
    with_type(op.type,
              [&](auto t) { fill_block<decltype(t)>(random, row, op.row_elements, nan_allowed); });
  }
  if (is_finite) even_out(random, pairs.rows.data(), pairs.rows.size() / sizeof(float));
  return pairs;
}

namespace {

/// Changes the rows into what arrives: the rows of one chunk travel together.
void travel(const OpSpec& op, unsigned chunk_bits, Rounder rounder, Pairs& pairs) {
  if (op.encoding == Encoding::kNone) return;
  const std::size_t row_bytes = op.row_elements * element_bytes(op.type);
  for (std::size_t first = 0, end; first < pairs.keys.size(); first = end) {
    rounder.block = pairs.keys[first] >> chunk_bits;
    for (end = first; end < pairs.keys.size() && pairs.keys[end] >> chunk_bits == rounder.block;)
      ++end;
    const auto rows = std::span(pairs.rows).subspan(first * row_bytes, (end - first) * row_bytes);
    std::ranges::copy(travelled(op, rounder, rows), rows.data());
  }
}

/// Sums pairs as they arrive; an average divides by `divisor`.
PairSums sum_pairs(const OpSpec& op, std::vector<Pairs> all, unsigned divisor,
                   unsigned chunk_bits) {
  const std::size_t row_bytes = op.row_elements * element_bytes(op.type);
  for (unsigned r = 0; r < all.size(); ++r) travel(op, chunk_bits, {.by = r}, all[r]);
  std::vector<std::size_t> at(all.size());
  PairSums sums;
  for (const std::uint64_t key : candidates(op)) {
    std::vector<const std::byte*> owners;
    for (unsigned r = 0; r < all.size(); ++r)
      if (at[r] < all[r].keys.size() && all[r].keys[at[r]] == key)
        owners.push_back(all[r].rows.data() + at[r]++ * row_bytes);
    if (owners.empty()) continue;
    std::vector<std::byte> sum(row_bytes);
    with_type(op.type, [&](auto t) {
      using T = decltype(t);
      for (std::size_t i = 0; i < row_bytes; i += sizeof(T))
        reduce_element<T>(op, owners, divisor, i, sum.data());
    });
    if (!is_scaled(op.encoding)) sum = travelled(op, {}, sum);
    const double size = magnitude(op, sum.data());
    if (size < op.threshold) {
      const double share = size / op.threshold;
      ++sums.rejected[share >= 0.5 ? 0 : share >= 0.25 ? 1 : share >= 0.125 ? 2 : 3];
      continue;
    }
    sums.keys.push_back(key);
    sums.rows.insert(sums.rows.end(), sum.begin(), sum.end());
  }
  if (is_scaled(op.encoding)) travel(op, chunk_bits, {}, sums);
  return sums;
}

std::vector<Pairs> pairs_of(const OpSpec& op, const std::vector<unsigned>& ranks) {
  std::vector<Pairs> all;
  for (const unsigned rank : ranks) all.push_back(make_pairs(op, rank));
  return all;
}

}  // namespace

PairSums sum_pairs(const OpSpec& op, unsigned ranks, unsigned chunk_bits) {
  std::vector<unsigned> all(ranks);
  std::iota(all.begin(), all.end(), 0u);
  return sum_pairs(op, pairs_of(op, all), ranks, chunk_bits);
}

PairSums sum_pairs_by_hosts(const OpSpec& op, const HostPlan& hosts, unsigned chunk_bits) {
  if (hosts.hosts() == 1) return sum_pairs(op, hosts.ranks(), chunk_bits);
  OpSpec on_host = op, between = op;  // only what travels is encoded and rejected
  on_host.encoding = Encoding::kNone;
  on_host.threshold = 0;
  if (op.reduction == Reduction::kAverage) between.reduction = Reduction::kSum;
  std::vector<Pairs> sums;
  for (std::size_t host = 0; host < hosts.hosts(); ++host)
    sums.push_back(
        sum_pairs(on_host, pairs_of(op, hosts.ranks_of(host)), hosts.ranks(), chunk_bits));
  return sum_pairs(between, std::move(sums), hosts.ranks(), chunk_bits);
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b, ElementType type) {
  if (a.size() != b.size()) return false;
  if (std::equal(a.begin(), a.end(), b.begin())) return true;
  bool equal = true;
  with_type(type, [&](auto t) {
    using T = decltype(t);
    for (std::size_t i = 0; i < a.size(); i += sizeof(T)) {
      const bool same_bits = std::memcmp(&a[i], &b[i], sizeof(T)) == 0;
      equal &= same_bits || (is_nan(load<T>(&a[i])) && is_nan(load<T>(&b[i])));
    }
  });
  return equal;
}

}  // namespace sluice::sim
