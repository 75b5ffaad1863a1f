// Packets written by hand, byte by byte, one or more of each kind, and what tests do with bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace sluice::test {

using Bytes = std::vector<std::byte>;

inline constexpr std::uint32_t kJob = 0x0a0b0c0d;
inline constexpr std::uint32_t kNone = 0xffffffff;
inline constexpr std::uint64_t kToken = 0x1122334455667788;
inline constexpr std::uint64_t kNonce = 0x1112131415161718;
inline constexpr std::uint64_t kIncarnation = 0x2122232425262728;
inline constexpr std::uint64_t kGeneration = 0x3132333435363738;
inline constexpr std::uint64_t kEpoch = 0x0102030405060708;
inline constexpr std::uint64_t kHost = 0x6162636465666768;
inline constexpr std::uint64_t kDeliveryToken = 0xa1a2a3a4a5a6a7a8;

/// "53 4c 00*6": bytes in hexadecimal, a repeated one with its count.
inline Bytes hex(const std::string& text) {
  Bytes bytes;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto star = word.find('*');
    const auto value = static_cast<std::byte>(std::stoul(word.substr(0, star), nullptr, 16));
    bytes.insert(bytes.end(), star == std::string::npos ? 1 : std::stoul(word.substr(star + 1)),
                 value);
  }
  return bytes;
}

inline Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

template <class T>
Bytes raw(const T& part) {
  const auto bytes = std::as_bytes(std::span(&part, 1));
  return {bytes.begin(), bytes.end()};
}

/// `bytes` with a little-endian value written over them.
template <class T>
Bytes with(Bytes bytes, std::size_t offset, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bytes.at(offset + i) = static_cast<std::byte>((std::uint64_t{value} >> (8 * i)) & 0xff);
  return bytes;
}
inline Bytes with_length(const Bytes& bytes) {
  return with(bytes, 4, static_cast<std::uint16_t>(bytes.size()));
}
inline Bytes resized(Bytes bytes, std::size_t size) {
  bytes.resize(size);
  return bytes;
}

// Offsets are those of docs/protocol.md.
inline const std::string kMember =
    "88 77 66 55 44 33 22 11"  // 16 token
    "  03 00  05 00  00*4 ";   // 24 rank, stream, reserved
inline const std::string kDelivery =
    "08 07 06 05 04 03 02 01"    // 16 epoch
    "  a8 a7 a6 a5 a4 a3 a2 a1"  // 24 delivery_token
    "  05 00  00*6 ";            // 32 stream, reserved
// 10 elements in blocks of 4: blocks 0, 1 and 2, the last of 2.
inline const std::string kShape =
    "0a 00*7  04 00  01  02 ";  // element_count, block_elements, wire_type float, columns
inline const std::string kDescriptor =
    "01 03 04 01  07 00  00 00"            // all_reduce, half, average, wants a part, root, layout
    "  f8 f7 f6 f5 f4 f3 f2 f1"            // tag
    "  01 00*7  02 00*7  05 00*7  00*8 ";  // begin, count, stride, seed
// Keys below 18 in chunks of 4, rows of one float: key 1, and the whole of chunk 2.
inline const std::string kKeyedShape = "12 00*7  01 00  01  02 ";
inline const std::string kKeyedDescriptor =
    "0a 01 01 00  00 00  00 00"  // sparse_all_reduce, float, sum
    "  f8 f7 f6 f5 f4 f3 f2 f1"  // tag
    "  00*6 e0 3f  00*24 ";      // threshold 0.5
// Keys 1, 8 and 10, with symbols of 3 bits: 6 and 1 are left out.
inline const std::string kRun =
    "01 00*7  03 00  00 00  03  00*3  0e"
    "  00 00 80 3f  00 00 00 40  00 00 40 40 ";
inline const std::string kBlock0 =
    "00 00 80 3f  00 00 00 40  00 00 40 40  00 00 80 40 ";       // 1 2 3 4
inline const std::string kBlock2 = "00 00 a0 40  00 00 c0 40 ";  // 5 6

inline std::string head(const std::string& kind, const std::string& length) {
  return "53 4c 01 " + kind + " " + length + " 00 00  0d 0c 0b 0a  00*4 ";
}

inline const std::map<std::string, Bytes>& golden() {
  static const std::map<std::string, Bytes> packets = [] {
    // 40 round, op, shape, completing_rank, lag, index, next, flags of column 0, column 1
    const auto result = [](const std::string& length, const std::string& flags) {
      return head("88", length) + kDelivery + "0a 00*7  02 00*7 " + kShape +
             "03 00  04 00  02 00 00 00  ff*4  00 00 " + flags + " 00  ff*4  ff*4  00 00  00  00 ";
    };
    return std::map<std::string, Bytes>{
        {"hello", hex(head("01", "80 00") + "18 17 16 15 14 13 12 11  03 00  08 00  00*100")},
        {"join", hex(head("02", "b8 00") +
                     "18 17 16 15 14 13 12 11  28 27 26 25 24 23 22 21"  // 16 nonce, incarnation
                     "  09 00*7  38 37 36 35 34 33 32 31"                // 32 serial, generation
                     "  03 00  08 00  10 00  00 01  c0 05"  // rank, world, streams, block, payload
                     "  01 00  02 00  04  01  cc*16"        // shard, shards, history, flags
                     "  08 07 06 05 04 03 02 01  68 67 66 65 64 63 62 61"  // 80 epoch, host
                     "  36 32 39 37 30 30 63 00*17  62 65 72 74 00*60")},  // 96 build, name
        {"keep_alive", hex(head("03", "50 00") + kMember + "2a 00*7  07 00*7  05 00 00 80  00*28")},
        {"leave", hex(head("04", "48 00") + kMember +
                      "01 00*7  02 00*7  05 00*7  06 00*7"  // 32 abort, op, value_a, value_b
                      "  06 00  0b 00  03 00  01 00")},     // 64 reason, field, ranks
        {"data", hex(head("05", "98 00") + kMember + "0a 00*7  02 00*7 " + kShape + "03 00*3 " +
                     kDescriptor +
                     "00 00 00 00  02 00 00 00  00 00  01  00"
                     "  01 00 00 00  ff*4  00 00  00  00 " +
                     kBlock0)},
        {"data of a later round",
         hex(head("05", "60 00") + kMember + "0b 00*7  02 00*7 " + kShape +
             "00 00*3  02 00 00 00  ff*4  00 00  01  00  ff*4  ff*4  00 00  00  00 " + kBlock2)},
        {"ack", hex(head("06", "28 00") + kMember + "0a 00*7")},
        {"probe", hex(head("07", "30 00") + kMember + "0a 00*7  05 00*7")},
        {"sync", hex(head("08", "28 00") + kMember + "0a 00*7")},
        {"challenge", hex(head("81", "50 00") + "18 17 16 15 14 13 12 11  28 27 26 25 24 23 22 21"
                                                "  09 00*7  cc*16  03 00*7"
                                                "  01 c0  00 00  ff d7  00*10")},
        {"pending", hex(head("82", "40 00") + "18 17 16 15 14 13 12 11  09 00*7  02 80 00*29 80")},
        {"welcome",
         hex(head("83", "68 00") + "18 17 16 15 14 13 12 11  28 27 26 25 24 23 22 21"
                                   "  88 77 66 55 44 33 22 11  38 37 36 35 34 33 32 31"
                                   "  08 07 06 05 04 03 02 01  a8 a7 a6 a5 a4 a3 a2 a1"
                                   "  10 00  00 01  c0 05  04  01  02 00  e8 03  07 4a ff ef"
                                   "  36 32 39 37 30 30 63 00*17")},
        {"refused", hex(head("84", "30 00") + "88 77 66 55 44 33 22 11  28 27 26 25 24 23 22 21"
                                              "  05 00*7  01 00  b8 12  07 02 00 0a")},
        {"abort",
         hex(head("85", "40 00") + "38 37 36 35 34 33 32 31  18 17 16 15 14 13 12 11  02 00*7"
                                   "  e8 03 00*6  84 03 00*6  06 00  0e 00  03 00  00 00")},
        {"left", hex(head("86", "18 00") + "88 77 66 55 44 33 22 11")},
        {"versions", hex(head("8c", "20 00") + "18 17 16 15 14 13 12 11  01  03  00*6")},
        {"keep_alive_ack",
         hex(head("87", "28 00") + "08 07 06 05 04 03 02 01  2a 00*7  a8 a7 a6 a5 a4 a3 a2 a1")},
        {"result", hex(result("68 00", "01") + kBlock2)},
        {"result without its sum", hex(result("60 00", "02"))},
        {"status", hex(head("89", "58 00") + kDelivery + "0a 00*7  01 00*7  09 00*31")},
        {"key_value_data",
         hex(head("20", "a5 00") + kMember + "0a 00*7  02 00*7 " + kKeyedShape +
             "03 00*3  00*8  ff*8  1d 00 00 00  00 00*3 " + kKeyedDescriptor + kRun)},
        {"key_value_data without a run", hex(head("20", "58 00") + kMember + "0b 00*7  02 00*7 " +
                                             kKeyedShape + "00 00*3  01 00*7  ff*8  00*8")},
        {"key_value_result",
         hex(head("a0", "8d 00") + kDelivery + "0a 00*7  02 00*7 " + kKeyedShape +
             "03 00  04 00  00*8  0b 00*7  01 00*3  02 00*3  03 00*3  04 00*3  1d 00 00 00  00 "
             "00*3 " +
             kRun)},
        {"poll", hex(head("8a", "48 00") + kDelivery + "  02 00*30  80")},
        {"beacon",
         hex(head("8b", "28 00") + "08 07 06 05 04 03 02 01  2a 00*7  a8 a7 a6 a5 a4 a3 a2 a1")},
    };
  }();
  return packets;
}

}  // namespace sluice::test
