/* Servers that are killed, or told to end, while rounds on gradients in device memory are under way: the job goes on
 * without them, no step fails, and every sum is right. One that ends by itself has been left by the job. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/integration/device_rig.h"

enum { N_RANKS = 3, N_TENSORS = 2, WINDOW = 3, N_SERVERS = 4 };
enum { AT, END }; /* the step that rank 0 has begun; the last one there is, 0: not known yet */

static const struct spec large = {
    .rows = 20000, .width = 4, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.1};
/* Lists of halves, whose repeats make wide slices. */
static const struct spec small = {
    .rows = 3000, .width = 1, .dtype = ZENPS_BF16, .rows_in = true, .repeats = 3, .density = 0.05};
/* Of all rows, so that it does not matter which zeros a scheme sends. */
static const struct spec dense = {.rows = 20000, .width = 4, .dtype = ZENPS_F32, .density = 1};
static const struct spec small_dense = {.rows = 3000, .width = 1, .dtype = ZENPS_F32, .density = 1};

struct scene {
  const char *scheme; /* NULL: balanced */
  int signals[3];     /* to the first servers, one after another; 0: no more */
};

static const struct spec *spec_of(const struct rank *rank, unsigned t) {
  const struct scene *const scene = rank->arg;
  if (scene->scheme) return t > 0 ? &small_dense : &dense;
  return t > 0 ? &small : &large;
}

static void end_flight(struct gpu *gpu, struct device_flight *flight, const struct rank *rank, unsigned t,
                       uint64_t step) {
  CHECK_OK(zenps_wait(flight->request, SOON_MS));
  if (((const struct scene *)rank->arg)->scheme) flight->out.nnz = spec_of(rank, t)->rows; /* all rows come */
  device_out_check(gpu, spec_of(rank, t), rank->world, step, &flight->out);
  device_flight_end(gpu, flight, spec_of(rank, t));
}

/* No rank is further than WINDOW steps ahead of rank 0, which says where the end is. */
static bool goes_on(const struct rank *rank, uint64_t step) {
  const unsigned end = atomic_load(&rank->words[END]);
  return end == 0 || step <= end;
}

static void trains(struct rank *rank) {
  const struct scene *const scene = rank->arg;
  struct device_flight flights[WINDOW][N_TENSORS];
  zenps_tensor_t *tensors[N_TENSORS];
  struct gpu gpu;
  uint64_t step = 1;
  device_begin(&gpu, rank);
  for (unsigned t = 0; t < N_TENSORS; t++)
    tensors[t] = tensor_open_by(rank, scene->scheme, t ? "small" : "large", spec_of(rank, t));
  for (;; step++) {
    for (unsigned t = 0; step > WINDOW && t < N_TENSORS; t++)
      end_flight(&gpu, &flights[step % WINDOW][t], rank, t, step - WINDOW);
    if (!goes_on(rank, step)) break;
    for (unsigned t = 0; t < N_TENSORS; t++)
      device_flight_start(&gpu, &flights[step % WINDOW][t], tensors[t], spec_of(rank, t), rank, step);
    if (rank->rank == 0) atomic_store(&rank->words[AT], (unsigned)step);
  }
  for (uint64_t left = step + 1 - WINDOW; left < step; left++)
    for (unsigned t = 0; t < N_TENSORS; t++) end_flight(&gpu, &flights[left % WINDOW][t], rank, t, left);
  device_end(&gpu, rank);
}

/* ------------------------------------------------------------ in the test's process */

static void run(const struct scene *scene) {
  struct cluster cluster;
  struct ranks ranks;
  bool is_well = true;
  unsigned at = 6;
  cluster_start(&cluster, N_SERVERS);
  ranks_start(&ranks, &cluster, N_RANKS, trains, scene);
  for (unsigned s = 0; is_well && s < 3 && scene->signals[s]; s++, at = atomic_load(&ranks.words[AT]) + 6) {
    is_well = ranks_get_to(&ranks, AT, at) && kill(cluster.servers[s], scene->signals[s]) == 0;
    if (is_well && scene->signals[s] == SIGTERM) is_well = process_ends_well(cluster.servers[s]);
  }
  is_well = is_well && ranks_get_to(&ranks, AT, at);
  atomic_store(&ranks.words[END], atomic_load(&ranks.words[AT]) + 2 * WINDOW);
  ranks_wait(&ranks, 0);
  assert_true(is_well);
  cluster_stop(&cluster);
}

static void test_device_loses_servers(void **state) {
  (void)state;
  run(&(struct scene){.signals = {SIGKILL, SIGKILL}});
}

static void test_device_leaves_servers(void **state) {
  (void)state;
  run(&(struct scene){.signals = {SIGTERM, SIGKILL, SIGTERM}});
}

/* Schemes that work in host memory among them. */
static void test_device_loses_under_other_schemes(void **state) {
  (void)state;
  static const char *const schemes[] = {"sparse-ps", "dense-ps", "omnireduce"};
  for (unsigned i = 0; i < 3; i++) run(&(struct scene){.scheme = schemes[i], .signals = {SIGTERM, SIGKILL}});
}

/* Servers read slices where the device has encoded them, also when they are announced to other ones, and sums land on
 * the device; with checksums, too. */
static void test_device_loses_direct(void **state) {
  (void)state;
  ONLY_EMULATED;
  setenv("ZENPS_PROVIDER", "fault+net", 1);
  setenv("ZENPS_FABRIC_FAULT", "dmabuf=1", 1);
  setenv("ZENPS_DEVICE", "0", 1);
  run(&(struct scene){.signals = {SIGTERM, SIGKILL}});
  setenv("ZENPS_FABRIC_CHECKSUMS", "yes", 1);
  run(&(struct scene){.signals = {SIGKILL, SIGTERM}});
  unsetenv("ZENPS_FABRIC_CHECKSUMS");
  unsetenv("ZENPS_DEVICE");
  unsetenv("ZENPS_FABRIC_FAULT");
  unsetenv("ZENPS_PROVIDER");
}

const struct CMUnitTest device_loss_tests[] = {
    cmocka_unit_test(test_device_loses_servers), cmocka_unit_test(test_device_leaves_servers),
    cmocka_unit_test(test_device_loses_under_other_schemes), cmocka_unit_test(test_device_loses_direct)};
const size_t n_device_loss_tests = sizeof device_loss_tests / sizeof device_loss_tests[0];
