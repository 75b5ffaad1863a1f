// Names of element types, reductions and errors, as command lines and reports use them.
#include <set>
#include <string>
#include <string_view>

#include <sluice/error.hpp>
#include <sluice/types.hpp>

#include "common/base/version.hpp"
#include "tests/unit/catch.hpp"

namespace names_tests {

using namespace sluice;

TEST_CASE("every element type is found again by its name") {
  std::set<std::string_view> names;
  for (unsigned value = 1; value <= 9; ++value) {
    const auto type = static_cast<ElementType>(value);
    REQUIRE(is_valid(type));
    CHECK(parse_element_type(name(type)) == type);
    CHECK(names.insert(name(type)).second);
  }
  CHECK(names == std::set<std::string_view>{"float", "double", "half", "bfloat16", "int8", "uint8",
                                            "int16", "int32", "int64"});
}

TEST_CASE("every reduction is found again by its name") {
  std::set<std::string_view> names;
  for (unsigned value = 1; value <= 8; ++value) {
    const auto reduction = static_cast<Reduction>(value);
    REQUIRE(is_valid(reduction));
    CHECK(parse_reduction(name(reduction)) == reduction);
    CHECK(names.insert(name(reduction)).second);
  }
  CHECK(names ==
        std::set<std::string_view>{"sum", "min", "max", "avg", "prod", "band", "bor", "bxor"});
}

TEST_CASE("every encoding is found again by its name") {
  std::set<std::string_view> names;
  for (unsigned value = 0; value <= 255; ++value) {
    const auto encoding = static_cast<Encoding>(value);
    CHECK(is_valid(encoding) == (name(encoding) != "?"));
    if (!is_valid(encoding)) continue;
    CHECK(parse_encoding(name(encoding)) == encoding);
    names.insert(name(encoding));
  }
  CHECK(names == std::set<std::string_view>{"none", "half", "bfloat16", "int8", "int4"});
  for (const char* text : {"", "?", "fp16", "Half", "uint8"}) CHECK_FALSE(parse_encoding(text));
}

TEST_CASE("what has no name is not invented") {
  for (const char* text : {"", "?", "Float", "float ", " float", "floa", "floats", "sum"})
    CHECK_FALSE(parse_element_type(text));
  for (const char* text : {"", "?", "SUM", "sum ", "average", "float"})
    CHECK_FALSE(parse_reduction(text));
  for (unsigned value : {0U, 10U, 255U}) {
    const auto type = static_cast<ElementType>(value);
    CHECK_FALSE(is_valid(type));
    CHECK(element_bytes(type) == 0);
    CHECK(name(type) == "?");
  }
  for (unsigned value : {0U, 9U, 255U}) {
    const auto reduction = static_cast<Reduction>(value);
    CHECK_FALSE(is_valid(reduction));
    CHECK(name(reduction) == "?");
  }
}

TEST_CASE("bitwise reductions are those of integers") {
  for (unsigned t = 1; t <= 9; ++t)
    for (unsigned r = 1; r <= 8; ++r) {
      const auto type = static_cast<ElementType>(t);
      CHECK(is_valid(type, static_cast<Reduction>(r)) == (r <= 5 || !is_float(type)));
    }
  CHECK_FALSE(is_valid(static_cast<ElementType>(10), Reduction::kSum));
  CHECK_FALSE(is_valid(ElementType::kInt8, static_cast<Reduction>(9)));
}

TEST_CASE("version and build are told in one line") {
  CHECK(std::string(version()).find('.') != std::string::npos);
  CHECK(std::string(build_id()).find('@') == std::string::npos);
  CHECK(version_line("sluice-perf") ==
        std::string("sluice-perf ") + version() + " (build " + build_id() + ")\n");
}

TEST_CASE("names need not end in a zero byte") {
  const std::string_view text = "int32,int64";
  CHECK(parse_element_type(text.substr(0, 5)) == ElementType::kInt32);
  CHECK(parse_element_type(text.substr(6)) == ElementType::kInt64);
}

TEST_CASE("every error code has a name of its own") {
  std::set<std::string_view> names;
  for (unsigned value = 1; value <= 14; ++value) {
    const std::string_view text = name(static_cast<ErrorCode>(value));
    CHECK(text != "?");
    CHECK(names.insert(text).second);
  }
  CHECK(name(static_cast<ErrorCode>(0)) == "?");
  CHECK(name(static_cast<ErrorCode>(15)) == "?");
}

TEST_CASE("an error carries its code, its text, and the rank and op it concerns") {
  const Error whole(ErrorCode::kWorkerLost, "rank 3 fell silent", 3, 17);
  CHECK(whole.code() == ErrorCode::kWorkerLost);
  CHECK(std::string(whole.what()) == "rank 3 fell silent");
  CHECK(whole.rank() == 3);
  CHECK(whole.op() == 17U);
  const Error plain(ErrorCode::kQuota, "no more jobs");
  CHECK_FALSE(plain.rank());
  CHECK_FALSE(plain.op());
}

}  // namespace names_tests
