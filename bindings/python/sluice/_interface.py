# Made of sluice.h: change nothing here, but run `ninja -C build python-interface`.
"""sluice.h for ctypes: its values, its structs, and the types of its functions. Statistics are here
twice: as the library writes them, and as users read them."""
from __future__ import annotations

import dataclasses
import enum
from ctypes import (POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int32,
                    c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p)
from typing import Any


class Status(enum.IntEnum):
    """What came of a call; those above 0 are sluice::ErrorCode."""
    OK = 0
    INVALID_ARGUMENT = 1  #: a setting or argument out of its range; nothing was started
    UNAVAILABLE = 2  #: a device, privilege, socket or memory is not to be had
    AGGREGATOR_LOST = 3  #: nothing was received within "aggregator_timeout_ms"
    WORKER_LOST = 4  #: a rank died or was declared failed; `rank` names it
    FORMATION_FAILED = 5  #: not all ranks came, or they disagree about the job
    OP_MISMATCH = 6  #: ranks called different collectives
    RANK_LEFT = 7  #: a rank left while others still work; `rank` names it
    RANK_RESTARTED = 8  #: a rank joined again: its generation of the job has ended
    QUOTA = 9  #: a limit of the aggregator on jobs, ports or memory is reached
    ABORTED = 10  #: this process left with ops pending
    PROTOCOL = 11  #: a peer broke the protocol's rules: a defect, please report it
    TIMEOUT = 12  #: the caller's own bound of a wait passed; the op goes on
    NOT_AUTHENTICATED = 13  #: the job has a secret, and this rank has another one or none
    #: an op was not done within its time-out, which ended the job; `rank` is one that it waited
    #: for, if that is known
    OP_TIMED_OUT = 14


class ElementType(enum.IntEnum):
    """Of one element, little-endian."""
    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3  #: IEEE 754 binary16
    BFLOAT16 = 4  #: upper half of a binary32
    INT32 = 5
    INT64 = 6
    INT8 = 7
    UINT8 = 8  #: a bool too, as 0 or 1: its logical or is SLUICE_BIT_OR, and so on
    INT16 = 9


class Reduction(enum.IntEnum):
    """How the ranks' elements become one. A result of floats is never -0.0, but +0.0."""
    SUM = 1  #: in rank order; integers wrap; 16-bit floats accumulate in 32 bits
    MIN = 2  #: NaN if any rank has NaN
    MAX = 3  #: NaN if any rank has NaN
    #: sum / ranks before the single rounding; integers do not wrap, but truncate towards 0
    AVERAGE = 4
    PRODUCT = 5  #: as the sum; zeros of ranks whose block is zero come last
    BIT_AND = 6  #: of integers, as the next two
    BIT_OR = 7
    BIT_XOR = 8


class Encoding(enum.IntEnum):
    """How the fp32 elements of a reduction travel; what each loses: <sluice/sluice.hpp>."""
    NONE = 0
    FLOAT16 = 3
    BFLOAT16 = 4
    INT8 = 10  #: times a power of two that each block has, as the next
    INT4 = 11


class sluice_error(Structure):
    _fields_ = [("status", c_int), ("rank", c_int32), ("op", c_int64), ("last_heard_ms", c_int64),
                ("message", c_char * 488)]


class sluice_job_statistics(Structure):
    _fields_ = [("ops_completed", c_uint64), ("ops_failed", c_uint64), ("ops_pending", c_uint64),
                ("packets_sent", c_uint64), ("packets_received", c_uint64),
                ("packets_dropped", c_uint64), ("retransmissions", c_uint64),
                ("narrowed_by_loss", c_uint64), ("narrowed_by_delay", c_uint64),
                ("rejoins", c_uint64), ("rounds_replayed", c_uint64)]


class sluice_reduce_options(Structure):
    _fields_ = [("size", c_size_t), ("reduction", c_int), ("reserved_0", c_uint32),
                ("nonzero_blocks", c_void_p), ("nonzero_words", c_size_t), ("tag", c_uint64),
                ("block_elements", c_uint16), ("encoding", c_uint16), ("reserved_1", c_uint32),
                ("rounding_seed", c_uint64)]


class sluice_sparse_tensor(Structure):
    _fields_ = [("size", c_size_t), ("keys", c_void_p), ("values", c_void_p), ("count", c_uint64),
                ("row_elements", c_uint64), ("type", c_int), ("reserved_0", c_uint32)]


class sluice_sparse_options(Structure):
    _fields_ = [("size", c_size_t), ("reduction", c_int), ("combine", c_int32),
                ("threshold", c_double), ("result_bytes", c_uint64), ("tag", c_uint64),
                ("encoding", c_uint16), ("reserved_0", c_uint16), ("reserved_1", c_uint32),
                ("rounding_seed", c_uint64)]


class sluice_op_statistics(Structure):
    _fields_ = [("duration_ns", c_uint64), ("blocks", c_uint64), ("blocks_sent", c_uint64),
                ("blocks_received", c_uint64), ("packets_sent", c_uint64),
                ("packets_received", c_uint64), ("bytes_sent", c_uint64),
                ("bytes_received", c_uint64), ("retransmissions", c_uint64)]


class sluice_block_compression(Structure):
    _fields_ = [("size", c_size_t), ("gradients", c_void_p), ("residual", c_void_p),
                ("out", c_void_p), ("count", c_uint64), ("sent_blocks", c_void_p),
                ("sent_words", c_size_t), ("block_elements", c_uint32), ("divisor", c_float)]


@dataclasses.dataclass(frozen=True)
class JobStatistics:
    """What a communicator has done since it joined, messages included."""
    ops_completed: int
    ops_failed: int
    ops_pending: int  #: now
    packets_sent: int
    packets_received: int
    packets_dropped: int  #: of those received: of no use, or not valid
    retransmissions: int  #: DATA sent again, and PROBEs
    narrowed_by_loss: int  #: times that fewer streams ran, as many DATA were lost
    narrowed_by_delay: int  #: or as packets waited for long on their way
    rejoins: int  #: times that an aggregator was lost, and joined again
    rounds_replayed: int  #: for ranks that lacked their results then


@dataclasses.dataclass(frozen=True)
class OpStatistics:
    """What one op cost this rank."""
    duration_ns: int  #: from the call to completion
    blocks: int  #: of the tensor
    blocks_sent: int  #: own non-zero ones
    blocks_received: int  #: those that are non-zero on some rank, and wanted here
    packets_sent: int  #: of every kind, for this op
    packets_received: int
    bytes_sent: int  #: UDP payload; on one host own non-zero blocks
    bytes_received: int
    retransmissions: int  #: DATA sent again, and PROBEs


FOREVER = 2**63 - 1
#: Of the functions that may fail: the arguments but the last, the error.
FALLIBLE: dict[str, list[Any]] = {
    "sluice_options_from_environment": [c_void_p],
    "sluice_options_set": [c_void_p, c_char_p, c_char_p],
    "sluice_options_set_interrupt": [c_void_p, c_void_p],
    "sluice_job_id": [c_char_p, POINTER(c_uint32)],
    "sluice_context_open": [c_void_p, POINTER(c_void_p)],
    "sluice_context_share": [c_void_p, POINTER(c_void_p)],
    "sluice_context_start_timeline": [c_void_p, c_char_p],
    "sluice_context_stop_timeline": [c_void_p],
    "sluice_context_close": [c_void_p],
    "sluice_communicator_join": [c_void_p, c_void_p, POINTER(c_void_p)],
    "sluice_communicator_leave": [c_void_p],
    "sluice_communicator_abort": [c_void_p, c_char_p],
    "sluice_communicator_failure": [c_void_p],
    "sluice_communicator_stragglers": [c_void_p, POINTER(c_uint16), c_size_t, POINTER(c_size_t)],
    "sluice_communicator_statistics": [c_void_p, POINTER(sluice_job_statistics), c_size_t],
    "sluice_all_reduce": [c_void_p, c_void_p, c_void_p, c_uint64, c_int,
                          POINTER(sluice_reduce_options), POINTER(c_void_p)],
    "sluice_broadcast": [c_void_p, c_void_p, c_uint64, c_int, c_int32, c_uint64, POINTER(c_void_p)],
    "sluice_all_gather": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_uint64,
                          POINTER(c_void_p)],
    "sluice_reduce": [c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int32,
                      POINTER(sluice_reduce_options), POINTER(c_void_p)],
    "sluice_reduce_scatter": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int,
                              POINTER(sluice_reduce_options), POINTER(c_void_p)],
    "sluice_gather": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int32, c_uint64,
                      POINTER(c_void_p)],
    "sluice_scatter": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int32, c_uint64,
                       POINTER(c_void_p)],
    "sluice_all_to_all": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_uint64,
                          POINTER(c_void_p)],
    "sluice_send": [c_void_p, c_void_p, c_uint64, c_int, c_int32, c_uint64, POINTER(c_void_p)],
    "sluice_recv": [c_void_p, c_void_p, c_uint64, c_int, c_int32, c_uint64, POINTER(c_void_p)],
    "sluice_barrier": [c_void_p, POINTER(c_void_p)],
    "sluice_split": [c_void_p, c_int32, c_int32, POINTER(c_void_p)],
    "sluice_duplicate": [c_void_p, POINTER(c_void_p)],
    "sluice_communicator_join_split": [c_void_p, c_void_p, POINTER(c_void_p)],
    "sluice_sparse_all_reduce": [c_void_p, POINTER(sluice_sparse_tensor), c_uint64,
                                 POINTER(sluice_sparse_options), POINTER(c_void_p)],
    "sluice_work_sparse_sums": [c_void_p, c_int, c_void_p, POINTER(c_void_p), POINTER(c_uint64)],
    "sluice_work_sparse_dense": [c_void_p, c_void_p, c_uint64, c_int],
    "sluice_work_sparse_rejected": [c_void_p, POINTER(c_uint64)],
    "sluice_work_wait": [c_void_p, c_int64],
    "sluice_work_set_timeout": [c_void_p, c_uint64],
    "sluice_work_stragglers": [c_void_p, POINTER(c_uint16), c_size_t, POINTER(c_size_t)],
    "sluice_work_statistics": [c_void_p, POINTER(sluice_op_statistics), c_size_t],
    "sluice_completion_queue_add": [c_void_p, c_void_p, c_uint64],
    "sluice_completion_queue_next": [c_void_p, c_int64, POINTER(c_uint64)],
    "sluice_completion_queue_descriptor": [c_void_p, POINTER(c_int)],
    "sluice_compress_threshold": [POINTER(sluice_block_compression), c_double, POINTER(c_uint64)],
    "sluice_compress_top_k": [POINTER(sluice_block_compression), c_uint64, POINTER(c_uint64)],
    "sluice_compress_top_k_ratio": [POINTER(sluice_block_compression), c_void_p, c_uint64,
                                    POINTER(c_uint64)],
    "sluice_compress_random_k": [POINTER(sluice_block_compression), c_uint64, c_uint64, c_uint64,
                                 POINTER(c_uint64)],
    "sluice_compress_elements": [c_void_p, c_void_p, c_uint64, c_float, c_void_p],
    "sluice_element_top_k_create": [c_uint64, c_uint64, c_uint32, POINTER(c_void_p)],
    "sluice_element_top_k_set_k": [c_void_p, c_uint64],
    "sluice_element_top_k_compress": [c_void_p, c_void_p, c_void_p, c_uint64, c_void_p],
    "sluice_k_for_union": [c_uint32, c_uint64, c_uint64, c_uint64, c_uint64, c_uint64,
                           POINTER(c_uint64)],
    "sluice_global_top_k_create": [c_uint64, c_uint32, c_int, c_uint64, c_uint64,
                                   POINTER(c_void_p)],
    "sluice_global_top_k_start": [c_void_p, c_void_p, c_void_p, c_void_p, c_uint64,
                                  POINTER(c_void_p)],
    "sluice_global_top_k_finish": [c_void_p, c_void_p, c_uint64, POINTER(c_uint64)],
    "sluice_global_top_k_set_k": [c_void_p, c_uint64],
    "sluice_global_top_k_forget": [c_void_p],
}
#: Of the others: what they return, and the arguments.
PLAIN: dict[str, tuple[Any, list[Any]]] = {
    "sluice_status_name": (c_char_p, [c_int]),
    "sluice_version": (c_char_p, []),
    "sluice_build": (c_char_p, []),
    "sluice_options_create": (c_void_p, []),
    "sluice_options_destroy": (None, [c_void_p]),
    "sluice_communicator_note_exception": (None, [c_void_p]),
    "sluice_communicator_destroy": (None, [c_void_p]),
    "sluice_communicator_rank": (c_int32, [c_void_p]),
    "sluice_communicator_world_size": (c_int32, [c_void_p]),
    "sluice_communicator_job_id": (c_uint32, [c_void_p]),
    "sluice_element_bytes": (c_size_t, [c_int]),
    "sluice_element_type_name": (c_char_p, [c_int]),
    "sluice_reduction_name": (c_char_p, [c_int]),
    "sluice_parse_element_type": (c_int, [c_char_p]),
    "sluice_parse_reduction": (c_int, [c_char_p]),
    "sluice_block_elements": (c_uint32, [c_void_p, c_int]),
    "sluice_op_block_elements": (c_uint32, [c_void_p, c_int, c_uint16]),
    "sluice_allocate": (c_void_p, [c_size_t]),
    "sluice_free": (None, [c_void_p]),
    "sluice_work_done": (c_int32, [c_void_p]),
    "sluice_work_progress": (c_double, [c_void_p]),
    "sluice_work_destroy": (None, [c_void_p]),
    "sluice_completion_queue_create": (c_void_p, []),
    "sluice_completion_queue_destroy": (None, [c_void_p]),
    "sluice_completion_queue_interrupt": (None, [c_void_p]),
    "sluice_elements_create": (c_void_p, []),
    "sluice_elements_get": (c_size_t, [c_void_p, c_void_p, c_void_p]),
    "sluice_elements_destroy": (None, [c_void_p]),
    "sluice_element_top_k_destroy": (None, [c_void_p]),
    "sluice_global_top_k_threshold": (c_float, [c_void_p]),
    "sluice_global_top_k_destroy": (None, [c_void_p]),
}
