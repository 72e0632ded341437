"""The header: one array of int64 words through which Python, the scheduler and the kernel's threads talk.

Each worker owns one workspace, laid out in this order: the header, the exchange rows of warp operations, the yield code
of each thread, the threads' suspended states, shared memory, local memory. Words that say `address` are addresses of
those parts. Indices below count words.
"""

# where a thread is: kept up to date by the scheduler, read by error messages
BLOCK = 0  # linear index of the block that runs
THREAD = 1  # thread that runs (after a divergent warp operation: the warp)
INTERVAL = 2  # counts block barriers, over all blocks of the launch
FIRST_INTERVAL = 3  # the value of INTERVAL when this block began
BX, BY, BZ = 4, 5, 6  # cuda.blockIdx

# set by Python before a launch
BDX, BDY, BDZ = 7, 8, 9  # cuda.blockDim
GDX, GDY, GDZ = 10, 11, 12  # cuda.gridDim
THREADS = 13  # threads in a block
FIRST, LAST = 14, 15  # this worker's blocks, FIRST <= block < LAST
BACKWARD = 16  # 1: last block first
ALLOW_EXIT = 17  # 1: threads may end while others wait at a barrier
DYNAMIC_BYTES = 18  # dynamic shared memory
STATE_BYTES, STATE_CONTEXT, STATE_THREAD = 19, 20, 21  # size of a suspended thread; offsets of its two arguments
STEP = 22  # address of the kernel's compiled code: resumes one thread
CONTEXT = 23  # address of the launch's arguments
EXCHANGE, CODES, STATES, SHARED, LOCAL = 24, 25, 26, 27, 28  # addresses
SHARED_BYTES, LOCAL_BYTES = 29, 30  # a block's shared memory, a thread's local memory
ORDER = 31  # address of the order in which threads run, 32 int32 a warp, -1 where there is no lane
NOTE, VOTE = 32, 33  # addresses of engine functions that kernels call
REGIONS, REGION_COUNT = 34, 35  # what is watched by the race check or counted
SHADOW = 36  # race check: address of the history of each element; counting: of the number of accesses of each thread

# set where a fault is found
FAULT = 40  # one of the kinds below
SITE = 41  # the place in the source, an index into the translation's list of sites
DETAIL = 42  # 10 words that depend on the kind

WARP_INTERVAL = 64  # 32 words: how often the lanes of each warp have met
HEADER_WORDS = 96

# the low two bits of a yield code (4 * site + kind): why a thread stopped
AT_BLOCK, AT_WARP, ENDED = 0, 1, 2

# kinds of fault
FAULT_INDEX = 1  # DETAIL: number of dimensions, indices, then sizes
FAULT_DIVIDE = 2
FAULT_LANE = 3  # DETAIL: the lane
FAULT_UNINITIALISED = 4  # DETAIL: region, element
FAULT_WRITE_WRITE = 5  # DETAIL: region, element, other block, other thread (or see races), other site
FAULT_READ_WRITE = 6  # reads what another wrote
FAULT_WRITE_READ = 7  # writes what another read
FAULT_RESULT = 77  # what a thread's code returns after it has filled in a fault; apart from all of Numba's own codes

# results of the scheduler besides 0
DIVERGENT_WARP, PARTLY_ENDED, DIFFERENT_BARRIERS, FAULTED, NUMBA_RAISED = 1, 2, 3, 4, 5

# kinds of access, for the race check and for counting: an atomic operation is two of its kind, one that reads and one
# that writes
READ, WRITE, ATOMIC = 0, 1, 2
KINDS = 3

# the history of one element: 12 int32, first of the last write, then of the last read
ROW = 12
ROW_BLOCK, ROW_INTERVAL, ROW_WHO, ROW_WARP_INTERVAL, ROW_SITE, ROW_ATOMIC = 0, 1, 2, 3, 4, 5
ROW_READ = 6
REGION_WORDS = 5  # first address, end address, bytes an element, first row of the shadow, 1 if shared memory
