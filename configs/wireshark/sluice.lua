-- Shows Sluice's packets, version 1, in Wireshark (3.6 or later) and tshark. docs/operators.md,
-- "Packet capture", tells how to load it.
--
-- docs/protocol.md is the authority on every byte. Its kinds, fields and names of values are below,
-- as reference/protocol.py writes them. What the codec would drop is shown with its drop reason.
-- The checks come in the codec's order (common/protocol/packet.cpp). The unit test `dissector`
-- compares names, places, values and drop reasons with the page and with the codec.

local sluice = Proto("sluice", "Sluice")

-- ---------------------------------------------------------------------------------- the page
-- Made of docs/protocol.md: change nothing here, but run `ninja -C build dissector-tables`.
local kind_names = {[0x01] = "HELLO", [0x02] = "JOIN", [0x03] = "KEEPALIVE", [0x04] = "LEAVE",
    [0x05] = "DATA", [0x06] = "ACK", [0x07] = "PROBE", [0x08] = "SYNC", [0x20] = "KV_DATA",
    [0x81] = "CHALLENGE", [0x82] = "PENDING", [0x83] = "WELCOME", [0x84] = "REFUSED",
    [0x85] = "ABORT", [0x86] = "LEFT", [0x87] = "KEEPALIVE_ACK", [0x88] = "RESULT",
    [0x89] = "STATUS", [0x8a] = "POLL", [0x8b] = "BEACON", [0x8c] = "VERSION", [0xa0] = "KV_RESULT"}
local kind_structs = {[0x01] = "Hello", [0x02] = "Join", [0x03] = "KeepAlive", [0x04] = "Leave",
    [0x05] = "Data", [0x06] = "Ack", [0x07] = "Probe", [0x08] = "Sync", [0x20] = "KeyValueData",
    [0x81] = "Challenge", [0x82] = "Pending", [0x83] = "Welcome", [0x84] = "Refused",
    [0x85] = "Abort", [0x86] = "Left", [0x87] = "KeepAliveAck", [0x88] = "Result",
    [0x89] = "Status", [0x8a] = "Poll", [0x8b] = "Beacon", [0x8c] = "Versions",
    [0xa0] = "KeyValueResult"}
local collectives = {[1] = "all_reduce", [2] = "barrier", [3] = "broadcast", [4] = "all_gather",
    [5] = "reduce", [6] = "reduce_scatter", [7] = "gather", [8] = "scatter", [9] = "all_to_all",
    [10] = "sparse_all_reduce"}
local element_types = {[1] = "float32", [2] = "float64", [3] = "float16", [4] = "bfloat16",
    [5] = "int32", [6] = "int64", [7] = "int8", [8] = "uint8", [9] = "int16"}
local wire_types = {[1] = "float32", [2] = "float64", [3] = "float16", [4] = "bfloat16",
    [5] = "int32", [6] = "int64", [7] = "int8", [8] = "uint8", [9] = "int16", [10] = "int8 scaled",
    [11] = "int4 scaled"}
local reductions = {[1] = "sum", [2] = "min", [3] = "max", [4] = "average", [5] = "product",
    [6] = "and", [7] = "or", [8] = "xor"}
local abort_reasons = {[1] = "rank declared failed", [2] = "rank disconnected",
    [3] = "rank restarted", [4] = "rank left", [5] = "rank aborted", [6] = "op mismatch",
    [7] = "join mismatch", [8] = "absent", [9] = "cannot resume", [10] = "generation over",
    [11] = "duplicate rank", [12] = "refused setting", [13] = "shutting down",
    [14] = "too many jobs", [15] = "not authenticated", [16] = "aggregator lost",
    [17] = "no memory", [18] = "op timed out", [19] = "message timed out", [20] = "kicked"}
local abort_fields = {[0] = "none", [1] = "world size", [2] = "rank", [3] = "streams",
    [4] = "block elements", [5] = "history", [6] = "shard", [7] = "shards", [8] = "op number",
    [9] = "collective", [10] = "op type", [11] = "reduction", [12] = "root", [13] = "tag",
    [14] = "element count", [15] = "wire type", [16] = "memory", [17] = "payload bytes",
    [18] = "layout", [19] = "shared memory", [20] = "key bound", [21] = "row elements",
    [22] = "threshold", [23] = "rounding seed"}
--- By struct its fields: name, bytes or the struct that it is, names of its bits.
local layouts = {
  Header = {{"magic", 2}, {"version", 1}, {"kind", 1}, {"length", 2},
    {"flags", 2, {"authenticated", "encrypted"}}, {"job", 4}, {"integrity", 4}},
  MemberHeader = {{"header", "Header"}, {"token", 8}, {"rank", 2}, {"stream", 2}, {"reserved", 4}},
  DeliveryHeader = {{"header", "Header"}, {"epoch", 8}, {"delivery_token", 8}, {"stream", 2},
    {"window", 2}, {"reserved", 4}},
  Shape = {{"element_count", 8}, {"block_elements", 2}, {"wire_type", 1}, {"columns", 1}},
  Descriptor = {{"collective", 1}, {"op_type", 1}, {"reduction", 1}, {"flags", 1, {"part"}},
    {"root", 2}, {"layout", 2}, {"tag", 8}, {"begin", 8}, {"count", 8}, {"stride", 8},
    {"rounding_seed", 8}},
  Column = {{"index", 4}, {"next", 4}, {"scale", 2}, {"flags", 1, {"present", "withheld"}},
    {"reserved", 1}},
  RunHeader = {{"first", 8}, {"keys", 2}, {"escapes", 2}, {"width", 1}, {"reserved", 3}},
  Hello = {{"header", "Header"}, {"nonce", 8}, {"rank", 2}, {"world_size", 2}, {"padding", 100}},
  Join = {{"header", "Header"}, {"nonce", 8}, {"incarnation", 8}, {"serial", 8}, {"generation", 8},
    {"rank", 2}, {"world_size", 2}, {"streams", 2}, {"block_elements", 2}, {"payload_bytes", 2},
    {"shard", 2}, {"shards", 2}, {"history", 1},
    {"flags", 1, {"no_progress", "authenticate", "encrypt"}}, {"challenge", 16}, {"epoch", 8},
    {"host", 8}, {"build", 24}, {"name", 64}},
  KeepAlive = {{"member", "MemberHeader"}, {"number", 8}, {"newest_beacon", 8},
    {"beacons_received", 4}, {"padding", 28}},
  Leave = {{"member", "MemberHeader"}, {"abort", 1}, {"reserved", 7}, {"op", 8}, {"value_a", 8},
    {"value_b", 8}, {"reason", 2}, {"field", 2}, {"rank_a", 2}, {"rank_b", 2}},
  Challenge = {{"header", "Header"}, {"nonce", 8}, {"incarnation", 8}, {"serial", 8},
    {"challenge", 16}, {"lanes", 2}, {"reserved", 6}, {"source_ports", 16}},
  Pending = {{"header", "Header"}, {"nonce", 8}, {"serial", 8}, {"absent", 32}},
  Welcome = {{"header", "Header"}, {"nonce", 8}, {"incarnation", 8}, {"token", 8},
    {"generation", 8}, {"epoch", 8}, {"delivery_token", 8}, {"streams", 2}, {"block_elements", 2},
    {"payload_bytes", 2}, {"history", 1},
    {"flags", 1, {"resume", "authenticate", "encrypt", "hosts"}}, {"lanes", 2},
    {"keep_alive_ms", 2}, {"group", 4}, {"build", 24}},
  Refused = {{"header", "Header"}, {"token", 8}, {"incarnation", 8}, {"number", 8}, {"shard", 2},
    {"udp_port", 2}, {"ipv4", 4}},
  Abort = {{"header", "Header"}, {"generation", 8}, {"nonce", 8}, {"op", 8}, {"value_a", 8},
    {"value_b", 8}, {"reason", 2}, {"field", 2}, {"rank_a", 2}, {"rank_b", 2}},
  Left = {{"header", "Header"}, {"token", 8}},
  KeepAliveAck = {{"header", "Header"}, {"epoch", 8}, {"number", 8}, {"delivery_token", 8}},
  Beacon = {{"header", "Header"}, {"epoch", 8}, {"number", 8}, {"delivery_token", 8}},
  Versions = {{"header", "Header"}, {"nonce", 8}, {"lowest", 1}, {"highest", 1}, {"reserved", 6}},
  Data = {{"member", "MemberHeader"}, {"round", 8}, {"op", 8}, {"shape", "Shape"},
    {"flags", 1, {"opening", "ask"}}, {"reserved", 1}, {"window", 2}},
  KeyValueData = {{"data", "Data"}, {"horizon", 8}, {"following", 8}, {"run_bytes", 4},
    {"reserved", 4}},
  Ack = {{"member", "MemberHeader"}, {"position", 8}},
  Probe = {{"member", "MemberHeader"}, {"position", 8}, {"have", 8}},
  Sync = {{"member", "MemberHeader"}, {"applied", 8}},
  Result = {{"delivery", "DeliveryHeader"}, {"round", 8}, {"op", 8}, {"shape", "Shape"},
    {"completing_rank", 2}, {"lag", 2}},
  KeyValueResult = {{"result", "Result"}, {"horizon", 8}, {"next", 8}, {"rejected", 16},
    {"run_bytes", 4}, {"reserved", 4}},
  Status = {{"delivery", "DeliveryHeader"}, {"round", 8}, {"live", 1}, {"reserved", 7},
    {"waiting", 32}},
  Poll = {{"delivery", "DeliveryHeader"}, {"streams", 32}},
}
-- The end of what is made.
abort_reasons[0] = "own decision"  -- of a LEAVE only
local checksum_states = {[0] = "Bad", "Good", "Unverified", "Not present"}  -- as Wireshark's own

-- ------------------------------------------------------------------------------------ fields
local none32 = 0xFFFFFFFF
local none64 = UInt64(0xFFFFFFFF, 0xFFFFFFFF)

local function integer(size, make, get)
  return {size = size, get = get, make = function(filter, label, o)
    if o.unit then return make(filter, label, base.UNIT_STRING, {" " .. o.unit}) end
    return make(filter, label, o.hex and base.HEX or base.DEC, o.values)
  end}
end
local u8 = integer(1, ProtoField.uint8, function(range) return range:uint() end)
local u16 = integer(2, ProtoField.uint16, function(range) return range:le_uint() end)
local u32 = integer(4, ProtoField.uint32, function(range) return range:le_uint() end)
local u64 = integer(8, ProtoField.uint64, function(range) return range:le_uint64() end)
local i16 = integer(2, ProtoField.int16, function(range) return range:le_int() end)
local f64 = {make = function(filter, label) return ProtoField.double(filter, label) end}
local ipv4 = {size = 4, get = function(range) return range:le_uint() end,
              make = function(filter, label) return ProtoField.ipv4(filter, label) end}
local function bytes(size)
  return {size = size, get = function(range) return range:raw() end,
          make = function(filter, label) return ProtoField.bytes(filter, label) end}
end

local function text(size)  -- up to the first zero
  return {size = size, get = function(range) return range:raw() end,
          make = function(filter, label) return ProtoField.string(filter, label) end}
end

local function bit_of(width, bit)
  return {make = function(filter, label)
    return ProtoField.bool(filter, label, width, nil, 2 ^ bit)
  end}
end

local fields = {}  -- by filter, without "sluice."

local function field(filter, type, options)
  if not fields[filter] then
    local label = filter:match("[^.]+$"):gsub("_", " "):gsub("^%l", string.upper)
    fields[filter] = type.make("sluice." .. filter, label, options or {})
  end
  return fields[filter]
end

local hex = {hex = true}
local in_bytes = {unit = "bytes"}
local as_bytes = {type = bytes}
local as_text = {type = text}

--- How a field is shown, by its name, or by its struct and name. Others are decimal numbers, or
--- bytes where they are no number. The filter is the name, in some structs with a prefix.
---   hex, values, unit   how an integer is shown
---   type                if it does not follow from the size, which it is called with
---   filter              in place of the name
---   none                the value that means "none"
---   set                 what the bits of a set stand for
---   title               of a struct that has a tree of its own
local shown_as = {
  magic = hex, flags = hex, integrity = hex, token = hex, delivery_token = hex, nonce = hex,
  incarnation = hex, generation = hex, epoch = hex, host = hex, beacons_received = hex, have = hex,
  layout = hex, tag = hex, rounding_seed = hex, counter = hex,
  length = in_bytes, payload_bytes = in_bytes, run_bytes = in_bytes,
  reserved = as_bytes, padding = as_bytes, build = as_text, name = as_text,
  kind = {hex = true, values = kind_names},
  wire_type = {values = wire_types},
  collective = {values = collectives},
  op_type = {values = element_types},
  reduction = {values = reductions},
  reason = {values = abort_reasons},
  field = {values = abort_fields},
  scale = {type = i16},
  group = {type = ipv4},
  ipv4 = {type = ipv4},
  keep_alive_ms = {unit = "ms"},
  absent = {set = "ranks"},
  waiting = {set = "ranks"},
  following = {none = none64},
  shape = {title = "Shape"},
  ["Column.index"] = {none = none32},
  ["Column.next"] = {none = none32},
  ["KeyValueResult.next"] = {none = none64},
  ["Join.flags"] = {filter = "join.flags", hex = true},
  ["Welcome.flags"] = {filter = "welcome.flags", hex = true},
  ["Data.flags"] = {filter = "data.flags", hex = true},
  ["Poll.streams"] = {filter = "poll.streams", set = "streams, from this one on,"},
}
local prefixes = {Shape = "shape.", Descriptor = "descriptor.", Column = "column.",
                  JobTrailer = "trailer.", SessionTrailer = "trailer."}
layouts.JobTrailer = {{"tag", 16}}
layouts.SessionTrailer = {{"counter", 8}, {"tag", 16}}

local numbers = {u8, u16, [4] = u32, [8] = u64}  -- by their bytes

local function type_of(size, options)
  local found = options.type or numbers[size] or bytes
  return type(found) == "function" and found(size) or found
end

local structs = {}  -- by name

local function struct(name)
  if structs[name] then return structs[name] end
  local rows, size = {}, 0
  for i, layout in ipairs(layouts[name]) do
    local field_name, of, bits = layout[1], layout[2], layout[3] or {}
    local options = shown_as[name .. "." .. field_name] or shown_as[field_name] or {}
    local row = {name = field_name, options = options, offset = size}
    if layouts[of] then
      row.type = struct(of)
    else
      local filter = options.filter or (prefixes[name] or "") .. field_name
      row.type = type_of(of, options)
      row.field = field(filter, row.type, options)
      row.bit_fields = {}
      for k, bit in ipairs(bits) do
        row.bit_fields[k] = field(filter .. "." .. bit, bit_of(8 * of, k - 1))
      end
    end
    rows[i], size = row, size + row.type.size
  end
  structs[name] = {rows = rows, size = size}
  return structs[name]
end

local Header, MemberHeader, DeliveryHeader = struct("Header"), struct("MemberHeader"),
                                             struct("DeliveryHeader")
local Descriptor, Column, RunHeader = struct("Descriptor"), struct("Column"), struct("RunHeader")
local Data, Result = struct("Data"), struct("Result")
local JobTrailer, SessionTrailer = struct("JobTrailer"), struct("SessionTrailer")

-- What is of no fixed place.
field("descriptor.threshold", f64)  -- `begin` of a KV_DATA
field("block", bytes())
field("key", u64)  -- a local one
field("chunk.scale", i16)
field("rows", bytes())
field("encrypted", bytes())
field("rest", bytes())
field("integrity.status", u8, {values = checksum_states})
fields.drop = ProtoField.string("sluice.drop", "Drop reason")

local experts = {
  malformed = ProtoExpert.new("sluice.malformed", "Malformed: Sluice drops this packet",
                              expert.group.MALFORMED, expert.severity.ERROR),
  integrity = ProtoExpert.new("sluice.integrity.bad", "The CRC32C is wrong: damaged in transit",
                              expert.group.CHECKSUM, expert.severity.ERROR),
  cut = ProtoExpert.new("sluice.cut", "The capture has only the beginning of this packet",
                        expert.group.UNDECODED, expert.severity.NOTE),
  abort = ProtoExpert.new("sluice.aborted", "The job ends, or a join is refused",
                          expert.group.RESPONSE_CODE, expert.severity.WARN),
}
sluice.experts = experts

-- ----------------------------------------------------------------------------- reading a packet
-- A packet `p` has: tvb; tree; info, the words of the Info column; length, of the datagram; body,
-- the bytes without the trailer; captured, those of them that the capture has; at, the first byte
-- that is not shown yet; drop, the codec's reason, if it drops the packet.

local kEnds = {}  -- thrown where bytes are missing

local function drop(p, reason)
  p.drop = p.drop or reason  -- the codec stops at the first
end

local function range_of(p, offset, size)
  if offset + size > p.captured then error(kEnds) end
  p.at = math.max(p.at, offset + size)
  return p.tvb:range(offset, size)
end

local function has_bit(number, bit)
  return math.floor(number / 2 ^ bit) % 2 == 1
end

--- The numbers of the bits that are set, from the first byte's bit 0 on.
local function members_of(set)
  local members = {}
  for i = 0, 8 * #set - 1 do
    if has_bit(set:byte(math.floor(i / 8) + 1), i % 8) then table.insert(members, i) end
  end
  return members
end

--- Shows a struct and adds its values to `values`, by name.
local function show(p, tree, shown, offset, values)
  for _, row in ipairs(shown.rows) do
    local at, options = offset + row.offset, row.options
    if options.title then
      values[row.name] = {}
      local available = math.max(0, math.min(row.type.size, p.captured - at))
      show(p, tree:add(p.tvb:range(at, available), options.title), row.type, at, values[row.name])
    elseif row.type.rows and row.type ~= Header then  -- which is shown already
      show(p, tree, row.type, at, values)
    elseif row.field then
      local range = range_of(p, at, row.type.size)
      local value = row.type.get(range)
      local item = tree:add_le(row.field, range)
      for _, bit_field in ipairs(row.bit_fields) do item:add_le(bit_field, range) end
      if options.none and value == options.none then item:append_text(" (none)") end
      if options.set then
        local members = table.concat(members_of(value), " ")
        item:append_text((" (%s %s)"):format(options.set, members))
      end
      values[row.name] = value
    end
  end
  return values
end

-- ------------------------------------------------------------------------------------- CRC32C
-- Computed for every byte of a capture: without calls that it can do without.
local bxor = bit32 and bit32.bxor or load("return function(a, b) return a ~ b end")()

local byte_of = string.byte

local crc_of_byte = {}
for byte = 0, 255 do
  local crc = byte
  for _ = 1, 8 do
    local half = math.floor(crc / 2)
    crc = crc % 2 == 1 and bxor(half, 0x82F63B78) or half
  end
  crc_of_byte[byte] = crc
end

--- Of the whole packet, whose own field counts as zero.
local function integrity_of(packet)
  packet = packet:sub(1, 12) .. "\0\0\0\0" .. packet:sub(17)
  local crc = 0xFFFFFFFF
  for i = 1, #packet do
    local low = crc % 256
    crc = bxor((crc - low) / 256, crc_of_byte[bxor(low, byte_of(packet, i))])
  end
  crc = bxor(crc, 0xFFFFFFFF)
  return crc == 0 and 1 or crc
end

local function check_integrity(p, tree, told)
  local state = 1
  if told == 0 then
    state = 3
  elseif p.tvb:len() < p.length or not sluice.prefs.check_integrity then
    state = 2
  elseif integrity_of(p.tvb:raw()) ~= told then
    state = 0
  end
  local item = tree:add(fields["integrity.status"], p.tvb:range(12, 4), state):set_generated()
  if state == 0 then
    drop(p, "bad_integrity")
    item:add_proto_expert_info(experts.integrity)
  end
end

-- ------------------------------------------------------------------- parts of stream packets
local function is_reducible(type, reduction)
  local is_float = type <= 4 or type >= 10
  return wire_types[type] and reductions[reduction] and not (is_float and reduction >= 6)
end

local function is_scale(type, scale)
  return scale == -32768 or (scale >= -149 and scale <= (type == 10 and 121 or 125))
end

--- The number of bytes that elements take. "bfloat16" has 16 bits.
local function bytes_of(type, elements)
  return math.ceil(elements * tonumber(wire_types[type]:match("%d+")) / 8)
end

--- Without a fraction, which Lua 5.3 and later print of some whole numbers.
local function text_of(value)
  return type(value) == "number" and ("%d"):format(value) or tostring(value)
end

local function index_text(index)
  return index == none32 and "-" or text_of(index)
end

local kFlagNames = {[0] = "", [1] = ", present", [2] = ", withheld"}

--- The codec's checks of a column. `limits`: of the tensor.
local function check_column(p, c, known_flags, limits)
  if not known_flags[c.flags] then return drop(p, "bad_flags") end
  local function is_index(i) return i == none32 or i < limits.blocks end
  if not is_index(c.index) or not is_index(c.next) or (c.next <= c.index and c.next ~= none32) or
      (c.flags ~= 0 and c.index == none32) then
    return drop(p, "bad_index")
  end
  if limits.type >= 10 and c.flags ~= 0 and not is_scale(limits.type, c.scale) then
    return drop(p, "bad_shape")
  end
end

--- Columns, and the blocks that are present.
local function show_blocks(p, v, known_flags)
  local shape = v.shape
  if not wire_types[shape.wire_type] then return drop(p, "bad_enumeration") end
  if shape.columns == 0 or shape.columns > 64 or shape.block_elements == 0 or
      shape.block_elements > 16384 or
      shape.element_count > UInt64(none32) * UInt64(shape.block_elements) then
    return drop(p, "bad_shape")
  end
  local elements = shape.element_count:tonumber()
  local limits = {type = shape.wire_type, blocks = math.ceil(elements / shape.block_elements)}
  local first = p.at
  local blocks_at = first + shape.columns * Column.size
  if p.body < blocks_at then drop(p, "bad_length") end

  local columns, present = {}, 0
  for c = 0, shape.columns - 1 do
    local at = first + c * Column.size
    local tree = p.tree:add(range_of(p, at, Column.size), "Column " .. c)
    local column = show(p, tree, Column, at, {})
    tree:append_text(": " .. index_text(column.index) .. " > " .. index_text(column.next) ..
                     (kFlagNames[column.flags] or ""))
    check_column(p, column, known_flags, limits)
    if p.drop then return end
    if column.index ~= none32 and #p.info < 12 then
      table.insert(p.info, index_text(column.index) .. (column.flags == 1 and "*" or "") .. ">" ..
                           index_text(column.next))
    end
    if column.flags == 1 then
      local begin = column.index * shape.block_elements
      column.elements = math.min(shape.block_elements, elements - begin)
      column.bytes = bytes_of(shape.wire_type, column.elements)
      column.number = c
      present = present + column.bytes
      table.insert(columns, column)
    end
  end
  if p.body ~= blocks_at + present then return drop(p, "bad_length") end
  for _, column in ipairs(columns) do
    if column.bytes > 0 then
      local item = p.tree:add(fields.block, range_of(p, p.at, column.bytes))
      item:set_text(("Block %d, of column %d: %d elements, %d bytes"):format(
          column.index, column.number, column.elements, column.bytes))
    end
  end
end

local kDataFlags = {[0] = true, [1] = true}
local kResultFlags = {[0] = true, [1] = true, [2] = true}

--- Calls f for each key of a run: at most as many as its header says, and none that is too large.
local function each_key(p, header, symbols_at, symbols, f)
  local key, left = header.first, header.keys
  f(key)
  local width = header.width
  local escape = UInt64(1):lshift(width) - UInt64(1)
  local bits, count, at, passed = UInt64(0), 0, symbols_at, UInt64(0)
  while left > 1 and (width == 0 or symbols > 0) do
    local symbol = UInt64(0)
    if width > 0 then
      while count < width do
        bits = bits + UInt64(range_of(p, at, 1):uint()):lshift(count)
        at, count = at + 1, count + 8
      end
      symbol = bits:band(escape)
      bits, count, symbols = bits:rshift(width), count - width, symbols - 1
    end
    if passed + symbol < passed then return end
    passed = passed + symbol
    if width == 0 or symbol ~= escape then
      local following = key + passed + UInt64(1)
      if following <= key or following == none64 or passed == none64 then return end
      key, passed, left = following, UInt64(0), left - 1
      f(key)
    end
  end
end

--- The scaled rows of a run, as far as each chunk has a scale and its rows.
local function show_scaled_rows(p, shape, keys, at)
  local first = 1
  while first <= #keys do
    local chunk, behind = keys[first]:rshift(shape.columns), first + 1
    while keys[behind] and keys[behind]:rshift(shape.columns) == chunk do behind = behind + 1 end
    local rows = bytes_of(shape.wire_type, (behind - first) * shape.block_elements)
    if at + 2 + rows > p.body then return end
    p.tree:add_le(fields["chunk.scale"], p.tvb:range(at, 2))
    p.tree:add(fields.rows, range_of(p, at + 2, rows))
    at, first = at + 2 + rows, behind
  end
end

--- What is behind the fixed part of a keyed packet: whether it is a run with a first key below
--- `stop`, and from `lowest` on.
local function show_pairs(p, shape, stop, lowest)
  local begin = p.at
  if p.body - begin < RunHeader.size then return false end
  local tree = p.tree:add(range_of(p, begin, RunHeader.size), "Run")
  local header = show(p, tree, RunHeader, begin, {})
  tree:append_text((": %d keys, %d bits a symbol"):format(header.keys, header.width))
  table.insert(p.info, header.keys .. (header.keys == 1 and " key" or " keys"))
  if header.keys == 0 or header.first == none64 or header.width > 56 or
      (header.width == 0 or header.keys == 1) and header.escapes ~= 0 then
    return false
  end
  local symbols = header.width == 0 and 0 or header.keys - 1 + header.escapes
  local symbols_at = begin + RunHeader.size
  local rows_at = symbols_at + math.ceil(symbols * header.width / 8)
  if rows_at > p.body then return false end
  local is_scaled = shape.wire_type >= 10
  local rows = bytes_of(shape.wire_type, header.keys * shape.block_elements)
  if is_scaled and rows_at + rows >= p.body or not is_scaled and rows_at + rows ~= p.body then
    return false
  end
  local keys = {}
  each_key(p, header, symbols_at, symbols, function(key)
    table.insert(keys, key)
    tree:add(fields.key, range_of(p, begin, rows_at - begin), key):set_generated()
  end)
  if is_scaled then
    show_scaled_rows(p, shape, keys, rows_at)
  else
    p.tree:add(fields.rows, range_of(p, rows_at, rows))
  end
  return header.first < stop and header.first < shape.element_count and header.first >= lowest
end

--- The run of a keyed packet: of keys below `stop`, and from `lowest` on.
local function show_run(p, v, stop, lowest)
  local shape = v.shape
  if not wire_types[shape.wire_type] then return drop(p, "bad_enumeration") end
  if shape.element_count == UInt64(0) or shape.element_count == none64 or
      shape.block_elements == 0 or shape.columns > 8 then
    return drop(p, "bad_shape")
  end
  local bound = shape.element_count
  if v.horizon >= bound or stop <= v.horizon or (stop >= bound and stop ~= none64) then
    return drop(p, "bad_index")
  end
  if p.body - p.at ~= v.run_bytes then return drop(p, "bad_length") end
  if v.run_bytes > 0 and not show_pairs(p, shape, stop, lowest) then drop(p, "bad_index") end
end

--- The rest of a DATA or KV_DATA behind its fixed part. `is_keyed`: the latter.
local function show_descriptor(p, v, is_keyed)
  if v.flags > 3 then drop(p, "bad_flags") end
  if has_bit(v.flags, 0) then table.insert(p.info, "opening") end
  if has_bit(v.flags, 1) then table.insert(p.info, "ask") end
  if not has_bit(v.flags, 0) then return end
  if p.body < p.at + Descriptor.size then drop(p, "bad_length") end
  local at = p.at
  local tree = p.tree:add(range_of(p, at, Descriptor.size), "Descriptor")
  local d = show(p, tree, Descriptor, at, {})
  if is_keyed then tree:add_le(fields["descriptor.threshold"], p.tvb:range(at + 16, 8)) end
  tree:append_text((": %s, %s of %s"):format(collectives[d.collective] or "?",
                                             reductions[d.reduction] or "?",
                                             element_types[d.op_type] or "?"))
  if not element_types[d.op_type] or not is_reducible(d.op_type, d.reduction) or
      not is_reducible(v.shape.wire_type, d.reduction) or not collectives[d.collective] then
    return drop(p, "bad_enumeration")
  end
  if d.flags > 1 then return drop(p, "bad_flags") end
  if (collectives[d.collective] == "sparse_all_reduce") ~= is_keyed then
    drop(p, "bad_enumeration")
  end
end

local function check_result(p, v)
  if v.completing_rank > 255 or v.lag > 63 or UInt64(v.lag) > v.round then drop(p, "bad_index") end
end

-- ------------------------------------------------------------------------------- kind by kind
local function demand(p, holds, reason)
  if not holds then drop(p, reason) end
end

local function check_cause(p, v, least)
  local is_known = v.reason >= least and abort_reasons[v.reason] and abort_fields[v.field]
  demand(p, is_known, "bad_enumeration")
end

local function cause_text(v)
  local text = abort_reasons[v.reason] or "reason " .. text_of(v.reason)
  if v.field ~= 0 then
    text = text .. ", " .. (abort_fields[v.field] or "field " .. text_of(v.field))
  end
  return ("%s: a: rank %d, %s; b: rank %d, %s"):format(text, v.rank_a, tostring(v.value_a),
                                                       v.rank_b, tostring(v.value_b))
end

--- Each 0, or one of its lane's.
local function are_source_ports(ports)
  for lane = 0, 7 do
    local port = ports:byte(2 * lane + 1) + 256 * ports:byte(2 * lane + 2)
    local first = 49152 + 2048 * lane
    if port ~= 0 and (port < first or port >= first + 2048) then return false end
  end
  return true
end

local kVersions = 0x8c  -- the kind that is read whatever its version
local kHistories = {[2] = true, [4] = true, [8] = true, [16] = true, [32] = true, [64] = true}

--- Of each kind: what it tells in the Info column, {x} being the value of x, and {#x} its last
--- four digits; `of_job`, if its trailer is made under the job's key; `check`, the codec's checks;
--- `parts`, what shows and checks all that follows the struct.
local shown_by_kind = {
  HELLO = {of_job = true, tells = "rank {rank} nonce {#nonce}"},
  JOIN = {
    of_job = true,
    tells = "rank {rank} nonce {#nonce} serial {serial} gen {#generation} epoch {#epoch}",
    check = function(p, v) demand(p, v.flags <= 7, "bad_flags") end,
  },
  KEEPALIVE = {tells = "n {number}"},
  LEAVE = {
    tells = "abort {abort}",
    check = function(p, v)
      demand(p, v.abort <= 1, "bad_flags")
      check_cause(p, v, 0)
      if v.reason ~= 0 then table.insert(p.info, cause_text(v)) end
    end,
  },
  DATA = {
    tells = "r {round} op {op}",
    parts = function(p, v)
      show_descriptor(p, v, false)
      if not p.drop then show_blocks(p, v, kDataFlags) end
    end,
  },
  ACK = {tells = "pos {position}"},
  PROBE = {tells = "pos {position} have {have}"},
  SYNC = {tells = "applied {applied}"},
  KV_DATA = {
    tells = "r {round} op {op} from {horizon}",
    parts = function(p, v)
      show_descriptor(p, v, true)
      if not p.drop then show_run(p, v, v.following, UInt64(0)) end
    end,
  },
  CHALLENGE = {
    of_job = true, tells = "nonce {#nonce} serial {serial}",
    check = function(p, v)
      demand(p, v.lanes >= 1 and v.lanes <= 8 and are_source_ports(v.source_ports), "bad_shape")
    end,
  },
  PENDING = {of_job = true, tells = "nonce {#nonce}"},
  WELCOME = {
    of_job = true, tells = "nonce {#nonce} gen {#generation} epoch {#epoch}",
    check = function(p, v)
      demand(p, v.flags <= 15, "bad_flags")
      demand(p, v.streams >= 1 and v.streams <= 1024 and v.block_elements >= 1 and
                v.block_elements <= 16384 and v.payload_bytes >= 508 and v.payload_bytes <= 9670 and
                kHistories[v.history] and v.lanes >= 1 and v.lanes <= 8 and
                (v.group == 0 or (v.group >= 0xE0000100 and v.group <= 0xEFFFFFFF)), "bad_shape")
      if has_bit(v.flags, 0) then table.insert(p.info, "resume") end
    end,
  },
  REFUSED = {of_job = true, tells = "token {#token} n {number}"},
  ABORT = {
    of_job = true, tells = "gen {#generation} nonce {#nonce}",
    check = function(p, v)
      check_cause(p, v, 1)
      table.insert(p.info, cause_text(v))
      p.tree:add_proto_expert_info(experts.abort, cause_text(v))
    end,
  },
  LEFT = {of_job = true, tells = "token {#token}"},
  KEEPALIVE_ACK = {tells = "n {number}"},
  RESULT = {
    tells = "r {round} op {op}", check = check_result,
    parts = function(p, v) show_blocks(p, v, kResultFlags) end,
  },
  STATUS = {
    tells = "r {round}",
    check = function(p, v)
      demand(p, v.live <= 1, "bad_flags")
      table.insert(p.info, v.live == 1 and "waiting" or "syncing")
      table.insert(p.info, table.concat(members_of(v.waiting), " "))
    end,
  },
  POLL = {
    tells = "",
    check = function(p, v)
      table.insert(p.info, "of the streams from there: " ..
                           table.concat(members_of(v.streams), " "))
    end,
  },
  BEACON = {tells = "n {number}"},
  VERSION = {of_job = true, tells = "nonce {#nonce} speaks {lowest} to {highest}"},
  KV_RESULT = {
    tells = "r {round} op {op} from {horizon}",
    check = check_result, parts = function(p, v) show_run(p, v, v.next, v.horizon) end,
  },
}
local kinds = {}  -- by their codes
for code, name in pairs(kind_names) do
  local kind = shown_by_kind[name]
  kinds[code], kind.name, kind.struct = kind, name, struct(kind_structs[code])
  local first = kind.struct.rows[1].type
  kind.beginning = first == Data and MemberHeader or first == Result and DeliveryHeader or first
  kind.carries_values = kind.parts ~= nil
end

-- --------------------------------------------------------------------------------- the packet
--- What is told of a packet, with its values in place of their names.
local function told(template, values)
  return (template:gsub("{(#?)([%w_]+)}", function(short, name)
    local value = values[name]
    if short == "#" then value = "#" .. tostring(value % UInt64(10000)) end
    return text_of(value)
  end))
end

local function show_body(p, kind, is_encrypted)
  local shown = is_encrypted and kind.beginning or kind.struct
  if kind.parts then
    demand(p, p.body >= shown.size, "bad_length")
  else
    demand(p, p.body == shown.size, "bad_length")
  end
  local v = show(p, p.tree, shown, 0, {})
  if kind.beginning == MemberHeader then
    table.insert(p.info, told("rank {rank} s {stream}", v))
  elseif kind.beginning == DeliveryHeader then
    table.insert(p.info, told("epoch {#epoch} s {stream}", v))
  end
  if is_encrypted then
    table.insert(p.info, "encrypted")
    local size = p.captured - p.at
    if size > 0 then p.tree:add(fields.encrypted, range_of(p, p.at, size)) end
    return
  end
  if kind.tells ~= "" then table.insert(p.info, told(kind.tells, v)) end
  if kind.check then kind.check(p, v) end
  if kind.parts and not p.drop then kind.parts(p, v) end
end

--- Calls `work`, which may find that bytes are missing.
local function as_far_as_it_goes(p, work, ...)
  local done, problem = pcall(work, p, ...)
  if done then return end
  if problem ~= kEnds then error(problem, 0) end
  if p.tvb:len() < p.length then
    p.is_cut = true
  else
    drop(p, "bad_length")
  end
end

local function show_rest(p)
  if p.at < p.captured then
    p.tree:add(fields.rest, range_of(p, p.at, p.captured - p.at))
  end
end

local function show_packet(p)
  demand(p, p.length >= Header.size, "too_short")
  local h = show(p, p.tree, Header, 0, {})
  demand(p, h.magic == 0x4C53, "bad_magic")
  demand(p, h.version == 1 or h.kind == kVersions, "bad_version")
  if p.drop then return end
  local kind = kinds[h.kind]
  p.info = {kind and kind.name or ("kind 0x%02x"):format(h.kind), "job " .. text_of(h.job)}
  p.tree:append_text(", " .. table.concat(p.info, ", "))
  demand(p, h.length == p.length, "bad_length")
  demand(p, h.flags <= 3, "bad_flags")
  check_integrity(p, p.tree, h.integrity)

  local is_authenticated, is_encrypted = has_bit(h.flags, 0), has_bit(h.flags, 1)
  local trailer = kind and kind.of_job and JobTrailer or SessionTrailer
  if is_authenticated then p.body = p.length - trailer.size end
  if p.body < Header.size then return drop(p, "bad_length") end
  if is_encrypted and not (is_authenticated and kind and kind.carries_values) then
    return drop(p, "bad_flags")
  end
  if not kind then return drop(p, "bad_kind") end
  p.captured = math.min(p.body, p.tvb:len())
  as_far_as_it_goes(p, show_body, kind, is_encrypted)
  show_rest(p)
  if is_authenticated then
    p.captured = p.tvb:len()
    show(p, p.tree, trailer, p.body, {})
  end
end

function sluice.dissector(tvb, pinfo, tree)
  pinfo.cols.protocol = "Sluice"
  local length = tvb:reported_len()
  local p = {tvb = tvb, length = length, body = length, captured = tvb:len(), at = 0, info = {}}
  p.tree = tree:add(sluice, tvb:range())
  as_far_as_it_goes(p, show_packet)
  show_rest(p)
  if p.drop then
    table.insert(p.info, "[dropped: " .. p.drop .. "]")
    p.tree:add(fields.drop, p.drop):set_generated()
    if p.drop ~= "bad_integrity" then
      p.tree:add_proto_expert_info(experts.malformed, "Sluice drops this packet: " .. p.drop)
    end
  end
  if p.is_cut then p.tree:add_proto_expert_info(experts.cut) end
  pinfo.cols.info = table.concat(p.info, " ")
  return tvb:len()
end

-- --------------------------------------------------------------------------------- where it is
sluice.fields = fields
sluice.prefs.ports = Pref.range("UDP ports", "4747",
                                "Of aggregators: of one with L lanes, L ports from udp-port on",
                                65535)
sluice.prefs.check_integrity = Pref.bool("Check the CRC32C", true,
                                         "Compute the CRC32C of each packet that has one")

local udp_ports = DissectorTable.get("udp.port")
local ports

local function register()
  if ports == sluice.prefs.ports then return end
  if ports then udp_ports:remove(ports, sluice) end
  ports = sluice.prefs.ports
  udp_ports:add(ports, sluice)
end
register()
sluice.prefs_changed = register

--- On other ports: what begins as a packet of version 1, or as VERSION, and is as long as it says.
sluice:register_heuristic("udp", function(tvb, pinfo, tree)
  if tvb:len() < Header.size then return false end
  local kind = tvb:range(3, 1):uint()
  if tvb:range(0, 2):raw() ~= "SL" or not kinds[kind] or
      (tvb:range(2, 1):uint() ~= 1 and kind ~= kVersions) or
      tvb:range(4, 2):le_uint() ~= tvb:reported_len() then
    return false
  end
  sluice.dissector(tvb, pinfo, tree)
  return true
end)
