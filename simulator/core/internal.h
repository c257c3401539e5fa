/* What the files of the core share among themselves. */
#ifndef SIM_INTERNAL_H
#define SIM_INTERNAL_H

#include "core.h"

#define WORK_MAX (UINT64_MAX / 4)
#define PPM UINT64_C(1000000)

static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* sound.c */
uint64_t sim_machine_seal(const struct sim_machine *machine); /* of all that never changes once a machine is made */
int sim_machine_sound(const struct sim_machine *machine);     /* for a file of the right size */

/* lock.c */
void sim_lock_init(pthread_mutex_t *lock);
void sim_locks_init(struct sim_machine *machine);
void sim_lock_table(struct sim_machine *machine);
void sim_unlock_table(struct sim_machine *machine);
void sim_lock_gpu(struct sim_machine *machine, uint32_t gpu);
void sim_unlock_gpu(struct sim_machine *machine, uint32_t gpu);
void sim_lock_clock(struct sim_machine *machine); /* before all other locks */
void sim_unlock_clock(struct sim_machine *machine);

/* clock.c */
void sim_wake(struct sim_machine *machine, uint32_t *word);
void sim_futex_wait(const uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void sim_futex_wake(const uint32_t *word);
uint64_t sim_monotonic_ns(void);
uint64_t sim_monotonic_coarse_ns(void);
int sim_moved(const uint32_t *word, uint32_t seen); /* word NULL: never */

/* virtual_clock.c */
void sim_virtual_wait(struct sim_machine *machine, uint64_t until_ns, const uint32_t *word, uint32_t seen);
void sim_virtual_wake(struct sim_machine *machine, const uint32_t *word); /* this word has moved */

/* schedule.c: all with the GPU's lock held */
void sim_schedule(struct sim_machine *machine, uint32_t gpu, uint64_t now_ns);
uint64_t sim_schedule_next(struct sim_machine *machine, uint32_t gpu); /* when something next ends; UINT64_MAX: nothing runs */
uint64_t sim_schedule_least(struct sim_machine *machine, uint32_t stream, uint64_t ns); /* when the stream can have run its first `ns` at the earliest */
void sim_stream_activate(struct sim_machine *machine, struct sim_gpu *gpu, uint32_t stream);
void sim_stream_deactivate(struct sim_machine *machine, struct sim_gpu *gpu, uint32_t stream);
void sim_stream_drop(struct sim_machine *machine, uint32_t stream); /* forgets its work */

/* Brings the GPU up to now and returns with its lock held; serves what is due (timed faults, reaping) first. */
void sim_enter_gpu(struct sim_machine *machine, uint32_t gpu);

/* sample.c: GPU's lock held */
void sim_windows_close(struct sim_machine *machine, uint32_t gpu, uint64_t now_ns);

/* ledger.c: GPU's lock held */
void sim_ledger_add(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint64_t bytes);
void sim_ledger_sub(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint64_t bytes);
void sim_ledger_recount(struct sim_machine *machine, uint32_t gpu);

/* share.c: table lock held. What a process held passes to those who hold it too. */
void sim_shares_of_the_dead(struct sim_machine *machine, uint32_t process);

/* process.c */
int sim_process_alive(const struct sim_machine *machine, uint32_t row);
int sim_attachment_fd(const struct sim_machine *machine);
void sim_attachment_add(struct sim_machine *machine, int fd);
int sim_attachment_remove(const struct sim_machine *machine);

/* mig.c: GPU's lock held */
void sim_mig_forget(struct sim_machine *machine, uint32_t gpu); /* all instances end */
/* The GPU instance that a process runs in; NULL: the whole GPU. */
struct sim_gpu_instance *sim_instance_of(struct sim_machine *machine, uint32_t gpu, uint32_t process);
/* Makes the instances of a new machine; other than SIM_OK: they don't fit. */
int sim_mig_lay_out(struct sim_machine *machine, uint32_t gpu, const struct sim_mig_request *requests);

/* fault.c */
/* device_fault.c; table lock held, but for the one that serves what is due */
void sim_faults_apply_due(struct sim_machine *machine, uint64_t now_ns);
int sim_is_device_fault(const struct sim_fault *fault);
void sim_find_next_device_fault(struct sim_machine *machine);
void sim_fault_lift(struct sim_machine *machine, struct sim_fault *fault);

/* reading.c */
int sim_reading_known(const struct sim_gpu_info *info, const char *name);
int64_t sim_reading_set(struct sim_machine *machine, uint32_t gpu, const char *name, int64_t value); /* gives what it was */
int sim_glob(const char *pattern, const char *text);

#endif
