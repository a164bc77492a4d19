/*
 * Persistent reservations by libiscsi, none of whose own programs does them. The
 * initiator port is the same in each run.
 *
 *   pr URL reserve KEY     registers KEY with APTPL, and reserves (WRITE EXCLUSIVE)
 *   pr URL count KEY       registers KEY + 1, KEY + 2 ... in its place, and prints
 *                          each that was acknowledged, for ever
 *   pr URL show            prints each registered key, and the reservation
 *   pr URL write           writes a block of zeros at LBA 0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

static struct iscsi_context *iscsi;
static int lun;

static struct scsi_task *good(const char *what, struct scsi_task *task)
{
	if (!task || task->status != SCSI_STATUS_GOOD) {
		fprintf(stderr, "pr: %s: %s\n", what, iscsi_get_error(iscsi));
		exit(1);
	}
	return task;
}

static void out(const char *what, enum scsi_persistent_out_sa action, uint64_t key, uint64_t new_key)
{
	struct scsi_persistent_reserve_out_basic p = {
		.reservation_key = key, .service_action_reservation_key = new_key, .aptpl = action != SCSI_PERSISTENT_RESERVE_RESERVE,
	};

	scsi_free_scsi_task(good(what, iscsi_persistent_reserve_out_sync(iscsi, lun, action, SCSI_PERSISTENT_RESERVE_SCOPE_LU,
		SCSI_PERSISTENT_RESERVE_TYPE_WRITE_EXCLUSIVE, &p)));
}

static void show(void)
{
	struct scsi_persistent_reserve_in_read_keys *keys;
	struct scsi_persistent_reserve_in_read_reservation *held;
	struct scsi_task *task;
	int i;

	task = good("READ KEYS", iscsi_persistent_reserve_in_sync(iscsi, lun, SCSI_PERSISTENT_RESERVE_READ_KEYS, 4096));
	keys = scsi_datain_unmarshall(task);
	for (i = 0; keys && i < keys->num_keys; i++)
		printf("key %" PRIu64 "\n", keys->keys[i]);
	task = good("READ RESERVATION", iscsi_persistent_reserve_in_sync(iscsi, lun, SCSI_PERSISTENT_RESERVE_READ_RESERVATION, 4096));
	held = scsi_datain_unmarshall(task);
	if (held && held->reserved)
		printf("reservation %" PRIu64 " type %d\n", held->reservation_key, held->pr_type);
}

int main(int argc, char **argv)
{
	static unsigned char zeros[512];
	struct iscsi_url *url;
	uint64_t key;

	if (argc < 3)
		return 2;
	iscsi = iscsi_create_context("iqn.2026-01.example:pr");
	url = iscsi_parse_full_url(iscsi, argv[1]);
	if (!url) {
		fprintf(stderr, "pr: %s\n", iscsi_get_error(iscsi));
		return 2;
	}
	lun = url->lun;
	iscsi_set_isid_random(iscsi, 0x123456, 1);
	iscsi_set_targetname(iscsi, url->target);
	iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
	if (iscsi_full_connect_sync(iscsi, url->portal, lun)) {
		fprintf(stderr, "pr: connect: %s\n", iscsi_get_error(iscsi));
		return 1;
	}
	key = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	if (!strcmp(argv[2], "reserve")) {
		out("REGISTER", SCSI_PERSISTENT_RESERVE_REGISTER, 0, key);
		out("RESERVE", SCSI_PERSISTENT_RESERVE_RESERVE, key, 0);
	} else if (!strcmp(argv[2], "count")) {
		for (;; key++) {
			out("REGISTER", SCSI_PERSISTENT_RESERVE_REGISTER, key, key + 1);
			printf("key %" PRIu64 "\n", key + 1);
			fflush(stdout);
		}
	} else if (!strcmp(argv[2], "show")) {
		show();
	} else if (!strcmp(argv[2], "write")) {
		good("WRITE", iscsi_write10_sync(iscsi, lun, 0, zeros, sizeof(zeros), sizeof(zeros), 0, 0, 0, 0, 0));
	} else {
		return 2;
	}
	iscsi_logout_sync(iscsi);
	return 0;
}
