/* zenpsd. */
#include <signal.h>
#include <stdio.h>

#include "common/base/descriptors.h"
#include "common/base/exit.h"
#include "common/net/net.h"
#include "proto/wire.h"
#include "server/daemon/daemon.h"
#include "server/daemon/systemd.h"

#define LAST_WORDS_MS 500u /* for the log's reader, at the end */
#define ZPS_LOG_COMPONENT "zenpsd"
#include "common/base/log.h"

static void print_line(void *ctx, const char *text) {
  (void)ctx;
  puts(text);
}

static void list_providers(const struct zps_options *options) {
  const struct zps_net_config config = {.provider = options->fabric_provider,
                                        .interface = options->fabric_interface,
                                        .subnet = options->fabric_subnet,
                                        .max_msg = ZPS_WIRE_MESSAGE_MAX};
  zps_net_list(&config, print_line, NULL);
}

int main(int argc, char **argv) {
  struct zps_options options;
  struct zps_config_rest rest;
  struct zps_error error;
  zps_descriptors_fill();
  signal(SIGPIPE, SIG_IGN);
  zps_err_t err = zps_config_load(&zps_options_table, argc, argv, NULL, &options, &rest, &error);
  if (err) {
    fprintf(stderr, "zenpsd: %s\n", error.text);
    return ZPS_EXIT_USAGE;
  }
  enum zps_exit status = ZPS_EXIT_OK;
  err = rest.exit_now ? ZPS_OK : zps_options_complete(&options, &error);
  if (err) {
    fprintf(stderr, "zenpsd: %s\n", error.text);
    status = ZPS_EXIT_USAGE;
  } else if (!rest.exit_now && options.list_providers) {
    list_providers(&options);
  } else if (!rest.exit_now && !options.check) {
    zps_log_set_level((enum zps_log_level)options.log_level);
    zps_journal_set_format((enum zps_log_format)options.log_format);
    err = zps_daemon_run(&options, argc, argv, rest.file_read, &error);
    if (err) {
      zps_log_failure(ZPS_LOG_ERROR, &error);
      status = ZPS_EXIT_FAILED;
    }
    zps_log_flush(LAST_WORDS_MS);
  }
  zps_config_fini(&zps_options_table, &options);
  return status;
}
