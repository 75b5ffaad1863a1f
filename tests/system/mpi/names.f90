! Every function that is wrapped, as a program with `use mpi` calls it. Four ranks.
program names
  use, intrinsic :: iso_c_binding, only: c_ptr, c_f_pointer
  use mpi
  implicit none
  integer, parameter :: n = 4000
  integer :: rank, ranks, provided, request, code, i, r
  integer :: numbers(n), sums(n), parts(n, 0:3)
  integer(8) :: wide(n)
  real :: singles(n)
  double precision :: doubles(n), results(n)
  logical :: flags(n)
  type(c_ptr) :: address
  integer, pointer :: allocated(:)

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided, code)
  call check('level', provided == MPI_THREAD_MULTIPLE)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, code)

  numbers = [(rank * i, i = 1, n)]
  call MPI_Allreduce(numbers, sums, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
  call check('sum', code == MPI_SUCCESS .and. all(sums == [(6 * i, i = 1, n)]))

  singles = real(rank)
  call MPI_Allreduce(MPI_IN_PLACE, singles, n, MPI_REAL, MPI_MAX, MPI_COMM_WORLD, code)
  call check('maximum in place', all(singles == 3))

  wide = 2_8 ** (40 + rank)
  call MPI_Iallreduce(MPI_IN_PLACE, wide, n, MPI_INTEGER8, MPI_BOR, MPI_COMM_WORLD, request, code)
  call MPI_Wait(request, MPI_STATUS_IGNORE, code)
  call check('bits by request', all(wide == 15_8 * 2_8 ** 40))

  doubles = rank + 1
  results = 0
  call MPI_Reduce(doubles, results, n, MPI_DOUBLE_PRECISION, MPI_PROD, 2, MPI_COMM_WORLD, code)
  call check('product at the root', all(results == merge(24, 0, rank == 2)))
  if (rank == 1) then
    call MPI_Reduce(MPI_IN_PLACE, doubles, n, MPI_DOUBLE_PRECISION, MPI_MIN, 1, MPI_COMM_WORLD, code)
    call check('minimum in place', all(doubles == 1))
  else
    call MPI_Reduce(doubles, results, n, MPI_DOUBLE_PRECISION, MPI_MIN, 1, MPI_COMM_WORLD, code)
  end if

  flags = rank == 3 .and. [(mod(i, 2) == 0, i = 1, n)]
  call MPI_Bcast(flags, n, MPI_LOGICAL, 3, MPI_COMM_WORLD, code)
  call check('flags', all(flags .eqv. [(mod(i, 2) == 0, i = 1, n)]))

  call MPI_Allgather(numbers, n, MPI_INTEGER, parts, n, MPI_INTEGER, MPI_COMM_WORLD, code)
  call check('parts', all(parts == reshape([((r * i, i = 1, n), r = 0, 3)], [n, 4])))
  parts = 0
  parts(:, rank) = numbers
  call MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, parts, n, MPI_INTEGER, &
                     MPI_COMM_WORLD, code)
  call check('parts in place', all(parts == reshape([((r * i, i = 1, n), r = 0, 3)], [n, 4])))

  call MPI_Barrier(MPI_COMM_WORLD, code)
  call MPI_Allreduce(rank, sums, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
  call check('a small sum', sums(1) == 6)

  call MPI_Alloc_mem(4_MPI_ADDRESS_KIND * n, MPI_INFO_NULL, address, code)
  call check('memory', code == MPI_SUCCESS)
  call c_f_pointer(address, allocated, [n])
  allocated = rank
  call MPI_Free_mem(allocated, code)
  call check('memory is freed', code == MPI_SUCCESS)
  if (rank == 0) print '(a)', 'all is right'
  call MPI_Finalize(code)

contains

  subroutine check(what, is_so)
    character(*), intent(in) :: what
    logical, intent(in) :: is_so
    integer :: ignored
    if (is_so) return
    print '(a, i0, 2a)', 'rank ', rank, ' has it wrong: ', what
    call MPI_Abort(MPI_COMM_WORLD, 1, ignored)
  end subroutine check

end program names
