/* The port that ranks meet at: nothing holds it, and the system gives it to nobody. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker/tools/master.h"

/* Holds a port of the loopback interface alone, without listening. Fails the test where it is taken. */
static int hold(unsigned port) {
  const struct sockaddr_in at = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_true(fd >= 0);
  assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
  return fd;
}

static void test_held_ports_are_passed_over(void **state) {
  struct zps_error error;
  unsigned port;
  (void)state;
  assert_int_equal(zps_tools_port_free(&port, &error), ZPS_OK);
  const int fd = hold(port);
  assert_int_equal(zps_tools_port_find(port, port, 0), 0);
  assert_int_not_equal(zps_tools_port_find(port, port + 50, 0), port);
  assert_int_not_equal(zps_tools_port_find(port, port + 50, 51), port); /* 51 begins where 0 does */
  close(fd);
  assert_int_equal(zps_tools_port_find(port, port, 7), port);
}

static void test_the_system_gives_it_to_nobody(void **state) {
  unsigned low, high, port;
  struct zps_error error;
  (void)state;
  FILE *const file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
  if (!file || fscanf(file, "%u %u", &low, &high) != 2 || (low <= 20000 && high >= 65535)) skip();
  fclose(file);
  for (int i = 0; i < 50; i++) {
    assert_int_equal(zps_tools_port_free(&port, &error), ZPS_OK);
    assert_true(port >= 1024 && port <= 65535);
    assert_true(port < low || port > high);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_held_ports_are_passed_over),
      cmocka_unit_test(test_the_system_gives_it_to_nobody),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
