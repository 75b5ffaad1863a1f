"""The house rules that a text can be checked for. `check(path, text, headers)` yields complaints:
"PATH:LINE: what is wrong". `headers` is the set of the project's headers as they are included."""
import re

import layers

MAX_COLUMNS = 100
CPP = (".cpp", ".hpp")
C = (".c", ".h")
CODE = CPP + C + (".py", ".sh", ".build", ".conf", ".run", ".lua")

PRECOMPILED = re.compile(r"(^|/)pch/")  # headers that the build includes, for whoever needs them

# Each word is split here, so that this file passes its own check.
UNFINISHED = re.compile(
    r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"
    r"|(?i:\b(place" r"holder|dum" r"my|not " r"implemented|for " r"now|simpli" r"fied"
    r"|quick " r"and dirty|left as an " r"exercise)\b)")
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:wo" r"rk|ho" r"me|ro" r"ot|Us" r"ers)/\w")

# What a file that includes a standard header must use of it.
USES = {
    "algorithm": r"std::(ranges::)?(sort|stable_sort|min|max|clamp|copy|fill|find|any_of"
                 r"|all_of"
                 r"|none_of|count|for_each|equal|search|replace|remove|reverse|rotate|unique"
                 r"|lower_bound|upper_bound|binary_search|transform|generate|shuffle|mismatch"
                 r"|minmax|max_element|min_element|is_sorted|partial_sort|nth_element|partition"
                 r"|merge"
                 r"|adjacent_find|lexicographical_compare|move_backward|iter_swap|includes)",
    "array": r"std::(to_)?array\b",
    "atomic": r"std::(atomic|memory_order)",
    "bit": r"std::(bit_cast|bit_ceil|bit_floor|has_single_bit|popcount|countr|countl|endian"
           r"|bit_width|rot)",
    "bitset": r"std::bitset",
    "cassert": r"\bassert\(",
    "charconv": r"std::(from|to)_chars",
    "chrono": r"chrono",
    "compare": r"<=>|_ordering",
    "concepts": r"std::(same_as|convertible_to|integral|floating_point|invocable|derived_from"
                r"|constructible_from|unsigned_integral|signed_integral|movable|copyable|regular)",
    "condition_variable": r"std::condition_variable",
    "csignal": r"SIG|sig|raise",
    "cstddef": r"size_t|std::byte|ptrdiff_t|offsetof|nullptr_t|max_align_t",
    "cstdint": r"int\d+_t|intptr_t|INT\d+_M|UINT\d+_MAX|intmax_t",
    "cstdio": r"printf|puts|fopen|FILE|std(out|err)|fflush|rename|remove|perror",
    "cstdlib": r"getenv|exit|abort|strto|system|malloc|free|abs|mkdtemp|mkstemp|EXIT_|setenv|atexit"
               r"|aligned_alloc|rand",
    "cstring": r"\b(std::)?(mem(cpy|cmp|set|move|chr)|str(error|len|cmp|ncmp|cpy|chr|signal|err))",
    "deque": r"std::deque",
    "exception": r"exception|terminate|uncaught",
    "filesystem": r"filesystem",
    "fstream": r"[io]?fstream",
    "functional": r"std::(function|hash|less|greater|plus|invoke|ref|cref|bind|multiplies|minus)",
    "future": r"std::(promise|future|async|packaged_task)",
    "iostream": r"std::(cin|cout|cerr|clog)",
    "limits": r"numeric_limits",
    "map": r"std::(multi)?map",
    "memory": r"std::(unique_ptr|shared_ptr|weak_ptr|make_|enable_shared|addressof|construct_at"
              r"|destroy|allocator|align|assume_aligned)",
    "mutex": r"std::(\w*mutex|lock_guard|unique_lock|scoped_lock|call_once|once_flag|\w*_lock)",
    "numeric": r"std::(accumulate|iota|gcd|lcm|partial_sum|midpoint|reduce|inner_product)",
    "optional": r"optional|nullopt",
    "queue": r"std::(priority_)?queue",
    "random": r"std::(mt19937|random_device|\w+_distribution|seed_seq|minstd_rand)",
    "set": r"std::(multi)?set\b",
    "span": r"std::(span|as_bytes|as_writable_bytes|dynamic_extent)",
    "sstream": r"[io]?stringstream",
    "stdexcept": r"std::(runtime_error|logic_error|invalid_argument|out_of_range|domain_error"
                 r"|length_error|range_error)",
    "string": r"std::(string\b|to_string|getline|sto[a-z]+)",
    "string_view": r"string_view",
    "thread": r"std::(thread|this_thread|jthread)",
    "tuple": r"std::(tuple|tie|make_tuple|apply|get)",
    "type_traits": r"std::(is_|enable_if|conditional|remove_|add_|decay|underlying|make_(un)?signed"
                   r"|common_type|invoke_result|void_t|true_type|false_type|integral_constant"
                   r"|has_unique)",
    "unordered_map": r"std::unordered_(multi)?map",
    "unordered_set": r"std::unordered_(multi)?set",
    "utility": r"std::(move|forward|exchange|pair|swap|as_const|in_place|index_sequence|declval|get"
               r"|make_pair|make_index_sequence|to_underlying|unreachable)",
    "variant": r"std::(variant|visit|get_if|holds_alternative|monostate)",
    "vector": r"std::vector",
}


def check(path, text, headers):
    yield from check_words(path, text)
    if path.endswith(CODE) or "." not in path.rsplit("/", 1)[-1]:
        yield from check_columns(path, text)
    if path.endswith(CPP) and not PRECOMPILED.search(path):
        yield from check_includes(path, text, headers)


def check_words(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in ((UNFINISHED, "unfinished work"), (MACHINE_PATH, "a machine's path")):
            found = pattern.search(line)
            if found:
                yield f"{path}:{number}: {what}: '{found.group()}'"


def check_columns(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_COLUMNS:
            yield f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end of the line"
    if text and not text.endswith("\n"):
        yield f"{path}: the last line has no end"


def check_includes(path, text, headers):
    if path.endswith(".hpp") and "#pragma once" not in text and "HWY_TARGET_TOGGLE" not in text:
        yield f"{path}: a header without '#pragma once'"
    body = "\n".join(line for line in text.splitlines() if not layers.INCLUDE.match(line))
    seen = set()
    for number, mark, header in layers.includes(text):
        where = f"{path}:{number}: "
        if header in seen:
            yield where + f"{header} is included twice"
        seen.add(header)
        if mark == '"' and header not in headers:
            yield where + f'"{header}" is no header of the project, named from its root'
            continue
        complaint = layers.complaint_about(path, header, header in headers)
        if complaint:
            yield where + complaint
        if header in USES and not re.search(USES[header], body):
            yield where + f"<{header}> is not used"


def unused_headers(sources, public):
    """Headers that nobody includes. `sources`: texts by path."""
    used = {header for path, text in sources.items() if path.endswith(CPP)
            for _, _, header in layers.includes(text)}
    for path in sources:
        if path.endswith(".hpp") and path not in used and path not in public \
                and not PRECOMPILED.search(path):
            yield f"{path}: nobody includes it"
