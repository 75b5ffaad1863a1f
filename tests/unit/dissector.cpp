// configs/wireshark/sluice.lua, as tshark runs it: names, places and values against
// docs/protocol.md, drop reasons against the codec. Without tshark nothing is tested.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "common/protocol/packet.hpp"
#include "common/protocol/packet_kinds.hpp"
#include "common/protocol/protection.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/golden_packets.hpp"
#include "tests/unit/protocol_page.hpp"

namespace dissector_tests {

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr std::size_t kIpv4AndUdp = 28;

/// How packets are captured.
struct Capture {
  std::uint16_t udp_port = 4747;
  std::uint32_t most_bytes = 65535;  // of each packet's frame
};

bool has_tshark() {
  static const bool found = [] {
    if (std::system("tshark --version >/dev/null 2>&1") == 0) return true;
    std::puts("skipped: dissector: needs tshark");
    return false;
  }();
  return found;
}

/// Little-endian, but for what the name says.
class Writer {
 public:
  template <class T>
  void add(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(std::byte(value >> (8 * i)));
  }
  void add_big_endian(std::uint16_t value) {
    add(static_cast<std::uint16_t>(value >> 8 | value << 8));
  }
  void add(const Bytes& more) { bytes_.insert(bytes_.end(), more.begin(), more.end()); }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

/// A capture file (pcap) with a UDP datagram over IPv4 for each packet.
Bytes file_of(const std::vector<Bytes>& packets, const Capture& capture) {
  constexpr std::uint32_t kRawIp = 101;
  Writer file;
  for (const std::uint32_t word : {0xa1b2c3d4u, 0x00040002u, 0u, 0u, capture.most_bytes, kRawIp})
    file.add(word);
  for (const Bytes& packet : packets) {
    const auto size = static_cast<std::uint32_t>(kIpv4AndUdp + packet.size());
    Writer frame;
    frame.add(hex("45 00"));
    frame.add_big_endian(static_cast<std::uint16_t>(size));
    frame.add(hex("00*4 40 11 00 00  0a 4d 00 01  0a 4d 01 01"));
    frame.add_big_endian(capture.udp_port);
    frame.add_big_endian(capture.udp_port);
    frame.add_big_endian(static_cast<std::uint16_t>(8 + packet.size()));
    frame.add(hex("00 00"));
    frame.add(packet);
    const std::uint32_t captured = std::min(size, capture.most_bytes);
    for (const std::uint32_t word : {0u, 0u, captured, size}) file.add(word);
    file.add(resized(frame.bytes(), captured));
  }
  return file.bytes();
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What tshark prints of a capture of these packets. Root does not run it: for root, tshark 4.4
/// runs no scripts.
std::string tshark(const std::vector<Bytes>& packets, const std::string& arguments,
                   const Capture& how = {}) {
  auto name = (std::filesystem::temp_directory_path() / "dissector-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  const std::filesystem::path directory(name);
  const Bytes capture = file_of(packets, how);
  std::ofstream(directory / "capture", std::ios::binary)
      .write(reinterpret_cast<const char*>(capture.data()),
             static_cast<std::streamsize>(capture.size()));
  std::filesystem::copy(source_file("configs/wireshark/sluice.lua"), directory);
  for (const std::filesystem::path& path :
       {directory, directory / "capture", directory / "sluice.lua"})
    permissions(path, std::filesystem::perms{0755});
  const std::string nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups ";
  const std::string command =
      "cd '" + name + "' && WIRESHARK_CONFIG_DIR=. " + (geteuid() == 0 ? nobody : "") +
      "tshark -r capture -X lua_script:sluice.lua " + arguments + " >out 2>err";
  const int status = std::system(command.c_str());
  const std::string out = text_of(directory / "out");
  const std::string err = text_of(directory / "err");
  std::filesystem::remove_all(directory);
  INFO(err);
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  REQUIRE(err.find("Lua") == std::string::npos);
  REQUIRE(out.find("Lua Error") == std::string::npos);
  return out;
}

/// The drop reason; then, behind a tab, all that tshark finds worth a remark: Lua's errors, too.
const std::string kDropsAndErrors = "-T fields -e sluice.drop -e _ws.expert.message";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// As PDML has it.
struct Shown {
  std::string name;      // of the display filter
  std::string showname;  // as a reader sees it
  std::string show;      // the value
  std::size_t at = 0;    // in the packet
  std::size_t size = 0;
};

std::string attribute(const std::string& line, const std::string& name) {
  const std::string begins = " " + name + "=\"";
  const auto begin = line.find(begins);
  if (begin == std::string::npos) return {};
  const auto from = begin + begins.size();
  return line.substr(from, line.find('"', from) - from);
}

/// What is shown of each packet, in its order.
std::vector<std::vector<Shown>> dissect(const std::vector<Bytes>& packets,
                                        const Capture& how = {}) {
  std::vector<std::vector<Shown>> all;
  for (const std::string& line : lines_of(tshark(packets, "-T pdml", how))) {
    if (line == "<packet>") all.emplace_back();
    const std::string name = attribute(line, "name");
    if (line.find("<field ") == std::string::npos || !name.starts_with("sluice.")) continue;
    all.back().push_back({name, attribute(line, "showname"), attribute(line, "show"),
                          std::stoul(attribute(line, "pos")) - kIpv4AndUdp,
                          std::stoul(attribute(line, "size"))});
  }
  REQUIRE(all.size() == packets.size());
  return all;
}

const Shown* find(const std::vector<Shown>& fields, const std::string& name) {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const Shown& field) { return field.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

std::vector<Bytes> golden_packets() {
  std::vector<Bytes> packets;
  for (const auto& [name, bytes] : golden()) packets.push_back(bytes);
  return packets;
}

/// As wire.hpp names it.
std::string struct_of(wire::Kind kind) {
#define SLUICE_STRUCT_OF(T, name, beginning, key) \
  if (kind == wire::Kind::k##T) return #T;
  SLUICE_WIRE_KINDS(SLUICE_STRUCT_OF)
#undef SLUICE_STRUCT_OF
  return {};
}

/// Calls visit(field, place) for each documented field of a struct that lies at `begin`.
template <class F>
void for_each_field_of(const std::string& type, std::size_t begin, F&& visit) {
  static const auto documented = documented_fields();
  static const std::map<std::string, std::string> kStructs{
      {"header", "Header"}, {"member", "MemberHeader"}, {"delivery", "DeliveryHeader"},
      {"shape", "Shape"},   {"data", "Data"},           {"result", "Result"}};
  for (const DocumentedField& row : documented) {
    if (row.type != type) continue;
    const auto inner = kStructs.find(row.name);
    if (inner != kStructs.end())
      for_each_field_of(inner->second, begin + row.offset, visit);
    else
      visit(row, begin + row.offset);
  }
}

/// The same for each of a packet that the codec accepts.
template <class F>
void for_each_field(const Bytes& bytes, F&& visit) {
  Packet packet;
  REQUIRE(Packet::parse(bytes, packet) == DropReason::kNone);
  const auto visit_part = [&](const std::string& type, const auto& part) {
    const auto* const at = reinterpret_cast<const std::byte*>(&part);
    for_each_field_of(type, static_cast<std::size_t>(at - bytes.data()), visit);
  };
  for_each_field_of(struct_of(packet.kind()), 0, visit);
  if (packet.descriptor() != nullptr) visit_part("Descriptor", *packet.descriptor());
  if (packet.kind() != wire::Kind::kData && packet.kind() != wire::Kind::kResult) return;
  for (const wire::Column& column : packet.columns()) visit_part("Column", column);
}

/// "sum" of "Reduction: sum (1)".
std::string value_name(const Shown& field) {
  const auto begin = field.showname.find(": ") + 2;
  return field.showname.substr(begin, field.showname.rfind(" (") - begin);
}

/// docs/protocol.md without links.
std::string plain_page() {
  return std::regex_replace(protocol_page(), std::regex(R"(\[([^\]]*)\]\([^)]*\))"), "$1");
}

Bytes with_trailer(const Bytes& packet, std::uint16_t flags) {
  const auto kind = static_cast<wire::Kind>(packet[3]);
  return with_length(with(packet, 6, flags) + Bytes(wire::trailer_bytes(kind), std::byte{0xee}));
}

/// A KV_RESULT with another run.
Bytes with_run(const Bytes& packet, const std::string& run) {
  const Bytes bytes = hex(run);
  const Bytes fixed = resized(packet, sizeof(wire::KeyValueResult));
  return with_length(with(fixed, 104, static_cast<std::uint32_t>(bytes.size())) + bytes);
}

/// Packets with scaled elements, and with runs whose keys are told in every way.
std::vector<Bytes> unusual_packets() {
  const Bytes scaled = with_length(
      with(with(resized(golden().at("data of a later round"), 90), 58, std::uint8_t{10}), 72,
           static_cast<std::uint16_t>(-3)));
  std::vector<Bytes> packets{scaled, with_length(with(resized(scaled, 89), 58, std::uint8_t{11}))};
  const auto add = [&](const Bytes& packet, const std::string& run) {
    packets.push_back(with_run(packet, run));
  };
  packets.push_back(with(golden().at("result"), 40, std::uint64_t{99}));  // any lag fits
  const Bytes last = with(golden().at("key_value_result"), 80, ~std::uint64_t{0});
  add(last, "10 00*7  02 00  00 00  00 00*3  00*8");  // keys 16 and 17
  add(last,
      "01 00*7  03 00  01 00  02 00*3  37  00*12");  // 1, 6 and 8: an escape, 1, 3 is an escape
  const Bytes integers = with(last, 66, std::uint8_t{10});
  for (const char* scale : {"fd ff", "6b ff", "79 00", "00 80"})
    add(integers, std::string("02 00*7  01 00  00 00  00 00*3  ") + scale + "  07");
  add(integers, "02 00*7  03 00  00 00  02 00*3  01  fd ff 07  fd ff 07 07");  // of two chunks
  const Bytes wide = with(with(last, 56, ~std::uint64_t{1}), 67, std::uint8_t{8});
  add(wide, "05 40 00*6  02 00  01 00  08 00*3  ff fb  00*8");
  add(wide, "00*8  02 00  00 00  38 00*3  fe ff*6  00*8");
  add(with(wide, 67, std::uint8_t{0}), "fd ff*7  01 00  00 00  00 00*3  00*4");  // the last key
  return packets;
}

/// Runs that no codec writes.
std::vector<Bytes> wrong_runs() {
  std::vector<Bytes> packets;
  for (const Bytes& packet : unusual_packets()) {
    if (packet.size() < sizeof(wire::KeyValueResult)) continue;
    for (const char* run :
         {"12 00*7  01 00  00 00  00 00*3  00*4", "00*8  00 00  00 00  00 00*3",
          "00*8  02 00  00 00  39 00*3  00*16", "00*8  02 00  01 00  00 00*3  00*8",
          "00*8  01 00  01 00  04 00*3  00  00*4", "ff*8  01 00  00 00  00 00*3  00*4", "05",
          "00*15", "02 00*7  01 00  00 00  00 00*3  6a ff 07",
          "02 00*7  01 00  00 00  00 00*3  7a 00 07", "00*8  ff ff  ff ff  38 00*3  00*20",
          "00*8  02 00  01 00  02 00*3  0d  00*8", "00*8  03 00  01 00  02 00*3  3f  fd ff 07",
          "f0 ff*7  03 00  00 00  38 00*3  00*6 f0 00*7  fd ff 07"}) {
      packets.push_back(with_run(packet, run));
    }
  }
  return packets;
}

/// A packet with other values in each of its fields: those at the bounds that docs/protocol.md
/// tells, and beside them.
std::vector<Bytes> with_other_values(const Bytes& packet) {
  static const std::regex number("0x[0-9A-F]+|\\d+");
  std::vector<Bytes> packets;
  for_each_field(packet, [&](const DocumentedField& row, std::size_t at) {
    if (row.size > sizeof(std::uint64_t)) return;
    std::vector<std::uint64_t> values{0, kNone, ~std::uint64_t{0}};
    for (std::sregex_iterator found(row.range.begin(), row.range.end(), number), end; found != end;
         ++found)
      values.push_back(std::stoull(found->str(), nullptr, 0));
    for (const std::uint64_t value : values)
      for (const std::uint64_t near : {value - 1, value, value + 1}) {
        Bytes changed = packet;
        for (std::size_t byte = 0; byte < row.size; ++byte)
          changed[at + byte] = static_cast<std::byte>(near >> (8 * byte));
        packets.push_back(changed);
      }
  });
  return packets;
}

/// Packets of every kind that are sound, cut short, changed in one field or in any byte, and noise.
std::vector<Bytes> damaged_packets() {
  std::vector<Bytes> sound = golden_packets();
  const auto append = [](std::vector<Bytes>& to, const std::vector<Bytes>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  append(sound, unusual_packets());
  std::vector<Bytes> packets = wrong_runs();
  for (const Bytes& packet : sound) append(packets, with_other_values(packet));
  for (const Bytes& packet : golden_packets()) {
    const Bytes authenticated = with_trailer(packet, wire::kAuthenticated);
    sound.push_back(with(authenticated, 12, integrity_of(authenticated)));
    sound.push_back(with_trailer(packet, wire::kAuthenticated | wire::kEncrypted));
  }
  append(packets, sound);
  for (const Bytes& packet : sound)
    for (std::size_t size = 1; size < packet.size(); size += 1 + size / 16) {
      packets.push_back(resized(packet, size));
      if (size >= sizeof(wire::Header)) packets.push_back(with_length(resized(packet, size)));
    }
  std::mt19937 random(4747);
  const auto below = [&](std::size_t n) { return random() % n; };
  for (int i = 0; i < 2000; ++i) {
    Bytes packet = sound[below(sound.size())];
    for (auto changes = 1 + below(2); changes > 0; --changes)
      packet[below(packet.size())] ^= std::byte(1 << below(8));
    packets.push_back(packet);
  }
  for (int i = 0; i < 200; ++i) {
    Bytes noise(1 + below(200));
    for (std::byte& byte : noise) byte = std::byte(random());
    packets.push_back(noise);
  }
  return packets;
}

}  // namespace

TEST_CASE("Wireshark shows every field of docs/protocol.md: its name, place and value") {
  if (!has_tshark()) return;
  const auto packets = golden_packets();
  const auto all = dissect(packets);
  for (std::size_t i = 0; i < packets.size(); ++i) {
    CHECK(find(all[i], "sluice.drop") == nullptr);
    for_each_field(packets[i], [&](const DocumentedField& row, std::size_t at) {
      INFO(row.full_name());
      const auto shown = std::find_if(all[i].begin(), all[i].end(), [&](const Shown& field) {
        return field.at == at && field.size == row.size && field.name.ends_with("." + row.name);
      });
      REQUIRE(shown != all[i].end());
      if (row.name == "build") CHECK(shown->show == "629700c");
      if (row.size > sizeof(std::uint64_t) || row.range == "ignored") return;
      if (row.name == "group" || row.name == "ipv4") {
        CHECK(shown->show == (row.name == "group" ? "239.255.74.7" : "10.0.2.7"));
        return;
      }
      std::uint64_t value = 0;
      for (std::size_t byte = 0; byte < row.size; ++byte)
        value |= std::to_integer<std::uint64_t>(packets[i].at(at + byte)) << (8 * byte);
      CHECK(std::stoull(shown->show, nullptr, 0) == value);
    });
  }
}

TEST_CASE("Wireshark has the name of every kind, on other ports, too") {
  if (!has_tshark()) return;
  std::map<std::string, std::string> names;
  for (const auto& fields : dissect(golden_packets(), {.udp_port = 5000})) {
    const Shown* kind = find(fields, "sluice.kind");
    REQUIRE(kind != nullptr);
    names[kind->show] = value_name(*kind);
  }
  CHECK(names.size() == wire::kKinds.size());
  for (const wire::KindRow& row : wire::kKinds) {
    char code[8];
    std::snprintf(code, sizeof code, "0x%02x", static_cast<unsigned>(row.kind));
    CHECK(names[code] == row.name);
  }
}

TEST_CASE("Wireshark's names of values are those of docs/protocol.md") {
  if (!has_tshark()) return;
  struct Values {
    std::string packet;
    std::string field;
    std::size_t offset;
    unsigned first, last;
  };
  const std::vector<Values> enumerations{
      {"data", "sluice.descriptor.collective", 64, 1, 9},
      {"key_value_data", "sluice.descriptor.collective", 88, 10, 10},
      {"data", "sluice.descriptor.op_type", 65, 1, 9},
      {"data", "sluice.descriptor.reduction", 66, 1, 8},
      {"data", "sluice.shape.wire_type", 58, 1, 11},
      {"abort", "sluice.reason", 56, 1, wire::kLastAbortReason},
      {"abort", "sluice.field", 58, 0, wire::kLastField},
  };
  const std::string page = plain_page();
  for (const Values& values : enumerations) {
    std::vector<Bytes> packets;
    for (unsigned value = values.first; value <= values.last; ++value)
      packets.push_back(
          with(golden().at(values.packet), values.offset, static_cast<std::uint8_t>(value)));
    const auto all = dissect(packets);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Shown* field = find(all[i], values.field);
      REQUIRE(field != nullptr);
      const std::string name = value_name(*field);
      const std::string number = std::to_string(values.first + i);
      INFO(field->showname);
      CHECK((page.find(" " + number + " " + name) != std::string::npos ||
             page.find("\n" + number + " " + name) != std::string::npos ||
             page.find("\n| " + number + " | " + name + " |") != std::string::npos));
      CHECK(name != "Unknown");
    }
  }
}

TEST_CASE("Wireshark shows blocks, keys, trailers and what is encrypted") {
  if (!has_tshark()) return;
  const Bytes& data = golden().at("data");
  const Bytes encrypted = with_trailer(data, wire::kAuthenticated | wire::kEncrypted);
  const Bytes left = with_trailer(golden().at("left"), wire::kAuthenticated);
  const auto all = dissect(
      {data, golden().at("key_value_result"), encrypted, left, golden().at("key_value_data")});
  const auto check_place = [](const std::vector<Shown>& fields, const std::string& name,
                              std::size_t at, std::size_t size) {
    INFO(name);
    const Shown* field = find(fields, name);
    REQUIRE(field != nullptr);
    CHECK(field->at == at);
    CHECK(field->size == size);
  };
  check_place(all[0], "sluice.block", data.size() - 16, 16);
  std::vector<std::string> keys;
  for (const Shown& field : all[1])
    if (field.name == "sluice.key") keys.push_back(field.show);
  CHECK(keys == std::vector<std::string>{"1", "8", "10"});
  const Shown* const threshold = find(all[4], "sluice.descriptor.threshold");
  REQUIRE(threshold != nullptr);
  CHECK(threshold->show == "0.5");
  check_place(all[2], "sluice.encrypted", sizeof(wire::MemberHeader),
              data.size() - sizeof(wire::MemberHeader));
  check_place(all[2], "sluice.trailer.counter", data.size(), 8);
  check_place(all[2], "sluice.trailer.tag", data.size() + 8, 16);
  CHECK(find(all[2], "sluice.round") == nullptr);
  check_place(all[3], "sluice.trailer.tag", golden().at("left").size(), 16);
}

TEST_CASE("Wireshark finds what the codec drops, and why") {
  if (!has_tshark()) return;
  const auto packets = damaged_packets();
  const auto shown = lines_of(tshark(packets, kDropsAndErrors));
  REQUIRE(shown.size() == packets.size());
  std::map<std::string, int> reasons;
  for (std::size_t i = 0; i < packets.size(); ++i) {
    Packet packet;
    const DropReason reason = Packet::parse(packets[i], packet);
    const std::string expected(reason == DropReason::kNone ? "" : name(reason));
    ++reasons[expected];
    const std::string drop = shown[i].substr(0, shown[i].find('\t'));
    if (drop == expected) continue;
    std::string text;
    for (const std::byte byte : packets[i]) {
      char digits[4];
      std::snprintf(digits, sizeof digits, "%02x ", std::to_integer<unsigned>(byte));
      text += digits;
    }
    INFO(text);
    CHECK(drop == expected);
  }
  CHECK(reasons.size() == 11);  // each of the codec's, and none
}

TEST_CASE("Wireshark's Info column tells what is essential") {
  if (!has_tshark()) return;
  const auto info =
      lines_of(tshark({golden().at("data"), golden().at("result"), golden().at("status"),
                       golden().at("abort"), resized(golden().at("ack"), 39)},
                      "-o 'gui.column.format:\"Info\",\"%i\"'"));
  CHECK(info == std::vector<std::string>{
                    "DATA job 168496141 rank 3 s 5 r 10 op 2 opening ask 0*>2 1>-",
                    "RESULT job 168496141 epoch #2856 s 5 r 10 op 2 2*>-",
                    "STATUS job 168496141 epoch #2856 s 5 r 10 waiting 0 3",
                    "ABORT job 168496141 gen #3160 nonce #9624 op mismatch, element count: a: "
                    "rank 3, 1000; b: rank 0, 900",
                    "ACK job 168496141 [dropped: bad_length]"});
}

TEST_CASE("Wireshark does not blame a packet of which the capture has only the beginning") {
  if (!has_tshark()) return;
  std::vector<Bytes> packets = golden_packets();
  for (const Bytes& packet : golden_packets())
    packets.push_back(with_trailer(packet, wire::kAuthenticated));
  for (const std::size_t bytes : {1, 15, 16, 33, 64, 90, 120}) {
    INFO(bytes << " bytes");
    const auto most_bytes = static_cast<std::uint32_t>(kIpv4AndUdp + bytes);
    const auto shown = lines_of(tshark(packets, kDropsAndErrors, {.most_bytes = most_bytes}));
    REQUIRE(shown.size() == packets.size());
    for (std::size_t i = 0; i < packets.size(); ++i) {
      CHECK(shown[i].starts_with("\t"));
      const bool is_cut = shown[i].find("only the beginning") != std::string::npos;
      CHECK(is_cut == (packets[i].size() > bytes));
    }
  }
}

}  // namespace dissector_tests
