// Which id a job's name stands for, and which texts are neither name nor number.
#include "common/config/job_name.hpp"

#include <string>

#include <sluice/error.hpp>

#include "tests/unit/catch.hpp"

namespace sluice::config::job_name_tests {
namespace {

/// Printable ASCII, from '!' to '~'.
std::string printable() {
  std::string text;
  for (char c = '!'; c <= '~'; ++c) text += c;
  return text;
}

}  // namespace

// The ids are Python's: int.from_bytes(hashlib.blake2b(NAME, digest_size=32).digest()[:4],
// "little")
TEST_CASE("a job's name stands for the first bytes of its hash") {
  CHECK(job_id_of("bert-large") == 108'174'750);
  CHECK(job_id_of("a") == 3'869'911'177);
  CHECK(job_id_of("slurm_12345_7") == 1'002'527'269);
  CHECK(job_id_of(std::string(64, 'x')) == 3'038'117'480);
  CHECK(parse_job("job", "bert-large") == 108'174'750);
}

TEST_CASE("decimal digits are a job's number") {
  CHECK(job_id_of("0") == 0);
  CHECK(job_id_of("007") == 7);
  CHECK(job_id_of("4294967295") == 4'294'967'295);
  CHECK_FALSE(job_id_of("4294967296"));
  CHECK_FALSE(job_id_of("99999999999999999999999999"));
  CHECK(is_job_number("4294967296"));
  for (const char* const name : {"", "7x", "x7", "-7", "+7", "7 ", "0x7"}) {
    CAPTURE(name);
    CHECK_FALSE(is_job_number(name));
  }
}

TEST_CASE("what is no job's name is refused") {
  for (const std::string& name :
       {"x" + printable().substr(0, 63), "Z" + printable().substr(31), std::string("7e3")}) {
    CAPTURE(name);
    CHECK(job_id_of(name));
  }
  for (const std::string& text :
       {std::string(), std::string(65, 'x'), std::string("-1"), std::string("*"), std::string("#7"),
        std::string("_x"), std::string(" x"), std::string("x y"), std::string("x\t"),
        std::string("x\n"), std::string("x\x7f"), std::string("x\0y", 3),
        std::string("b\xc3\xa9")}) {
    CAPTURE(text);
    CHECK_FALSE(job_id_of(text));
  }
  CHECK_THROWS_WITH(parse_job("SLUICE_JOB", "x y"),
                    "SLUICE_JOB must be 0..4294967295, or a name of 1..64 printable ASCII"
                    " characters without blanks that begins with a letter or a digit, not 'x y'");
}

}  // namespace sluice::config::job_name_tests
