/* test: sources=simulator/core/?*.c,simulator/cuda/?*.c include=simulator/include,simulator/core,simulator/cuda
   variants=plain */
/* Time: who gets the GPU when, on the virtual clock to the nanosecond, and roughly on the real one. */
#include "rig.h"

#include <sched.h>
#include <sys/mman.h>

#define SECOND_CHANCE_NS UINT64_C(20000000000)

static struct sim_gpu_usage usage_of(struct sim_machine *machine, const char *group)
{
    struct sim_group_reading reading;
    OK(sim_read_group(machine, 0, group, &reading));
    return reading.usage;
}

/* A child that keeps the GPU supplied until it is killed. */
static pid_t busy_child(const char *group, const char *kernel, unsigned blocks)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(setenv("SIM_GROUP", group, 1) == 0);
        CUfunction function = ready_kernel(kernel);
        for (;;) /* a full ring makes the launch wait */
            OK(launch(function, blocks, NULL));
    }
    return child;
}

static void stop(pid_t child)
{
    int status;
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
}

static void run_virtual(struct sim_machine *machine, uint64_t until, uint32_t participants)
{
    OK(sim_machine_run_until(machine, until, participants, SECOND_CHANCE_NS));
}

static void two_processes_take_turns(void)
{
    struct sim_machine *machine = new_machine("turns", 1, SIM_CLOCK_VIRTUAL, 0);
    pid_t a = busy_child("a", "sim_us500", 10), b = busy_child("b", "sim_us3000", 1);
    run_virtual(machine, 1, 2); /* both are there, rings full */
    struct sim_gpu_usage a0 = usage_of(machine, "a"), b0 = usage_of(machine, "b");
    run_virtual(machine, 1 + 400 * MS, 2); /* a whole number of rounds of 2 x 2 ms */
    struct sim_gpu_usage a1 = usage_of(machine, "a"), b1 = usage_of(machine, "b");
    SAME(a1.busy_ns - a0.busy_ns, 200 * MS);
    SAME(b1.busy_ns - b0.busy_ns, 200 * MS);
    SAME(a1.queued_ns - a0.queued_ns, 400 * MS); /* while the other has its turn, too */
    struct sim_gpu_reading reading;
    OK(sim_read_gpu(machine, 0, &reading));
    SAME(reading.busy_ns, 1 + 400 * MS);
    SAME(reading.utilization_percent, 100);
    sound(machine);
    stop(a);
    run_virtual(machine, 1 + 400 * MS, 1);
    sim_machine_reap(machine); /* what is left has the GPU alone */
    b0 = usage_of(machine, "b");
    run_virtual(machine, 1 + 500 * MS, 1);
    b1 = usage_of(machine, "b");
    SAME(b1.busy_ns - b0.busy_ns, 100 * MS);
    stop(b);
    sound(machine);
    SAME(machine->gpu[0].used_bytes, 0);
    unlink(machine_path);
}

static void mps_shares_the_sms(void)
{
    struct sim_machine *machine = new_machine("mps", 1, SIM_CLOCK_VIRTUAL, 1);
    pid_t a = busy_child("a", "sim_us100", 1), b = busy_child("b", "sim_us100", 1); /* a tenth of the SMs each */
    run_virtual(machine, 1, 2);
    run_virtual(machine, 1 + 100 * MS, 2);
    struct sim_gpu_usage used = usage_of(machine, "a"), other = usage_of(machine, "b");
    CHECK(used.busy_ns >= 100 * MS && other.busy_ns >= 100 * MS); /* both at full speed */
    CHECK(used.launches >= 1000 && used.launches <= 1002);
    CHECK(used.sm_ns > 10 * MS - 2000 && used.sm_ns <= 10 * MS); /* occupancy is another matter than time; each step rounds down */
    stop(a);
    stop(b);
    sim_machine_reap(machine);
    uint64_t begin = sim_now(machine);
    a = busy_child("c", "sim_us100", 10);
    b = busy_child("d", "sim_us100", 10); /* all SMs each: half the speed */
    run_virtual(machine, begin + 1, 2);
    uint64_t c0 = usage_of(machine, "c").launches, d0 = usage_of(machine, "d").launches;
    run_virtual(machine, begin + 1 + 100 * MS, 2);
    SAME(usage_of(machine, "c").launches - c0, 500);
    SAME(usage_of(machine, "d").launches - d0, 500);
    stop(a);
    stop(b);
    sim_machine_reap(machine);
    begin = sim_now(machine);
    CHECK(setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", 1) == 0);
    a = busy_child("e", "sim_us100", 10); /* would like all SMs, gets two pairs of ten */
    unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    b = busy_child("f", "sim_us100", 6);
    run_virtual(machine, begin + 1, 2);
    uint64_t e0 = usage_of(machine, "e").launches, f0 = usage_of(machine, "f").launches;
    run_virtual(machine, begin + 1 + 100 * MS, 2);
    SAME(usage_of(machine, "e").launches - e0, 1000); /* so both run at full speed */
    SAME(usage_of(machine, "f").launches - f0, 1000);
    stop(a);
    stop(b);
    sound(machine);
    unlink(machine_path);
}

/* One process, one thread: nothing waits, so the test steps the clock itself. */
static void events_and_streams(void)
{
    struct sim_machine *machine = new_machine("events", 1, SIM_CLOCK_VIRTUAL, 0);
    CHECK(setenv("SIM_GROUP", "one", 1) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CUfunction function = ready_kernel("sim_us700");
        CUstream first, second;
        CUevent begin, middle, end;
        float milliseconds;
        OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
        OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&begin, 0));
        OK(cuEventCreate(&middle, 0));
        OK(cuEventCreate(&end, 0));
        SAME(cuEventElapsedTime(&milliseconds, begin, end), CUDA_ERROR_INVALID_HANDLE); /* never recorded */
        OK(cuEventRecord(begin, first));
        OK(launch(function, 5, first));
        OK(cuEventRecord(middle, first));
        OK(cuStreamWaitEvent(second, middle, 0));
        OK(launch(function, 5, second)); /* only after the first */
        OK(launch(function, 5, first));  /* beside it: both fit */
        OK(cuEventRecord(end, second));
        SAME(cuEventQuery(begin), CUDA_SUCCESS); /* the stream was idle */
        SAME(cuEventQuery(middle), CUDA_ERROR_NOT_READY);
        SAME(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
        sim_machine_step(machine, 699999);
        SAME(cuEventQuery(middle), CUDA_ERROR_NOT_READY);
        SAME(cuEventElapsedTime(&milliseconds, begin, middle), CUDA_ERROR_NOT_READY);
        sim_machine_step(machine, 1);
        OK(cuEventQuery(middle));
        SAME(cuEventQuery(end), CUDA_ERROR_NOT_READY);
        sim_machine_step(machine, 700000);
        OK(cuEventQuery(end));
        OK(cuStreamQuery(first));
        OK(cuEventElapsedTime(&milliseconds, begin, middle));
        CHECK(milliseconds == 0.7f);
        OK(cuEventElapsedTime(&milliseconds, begin, end));
        CHECK(milliseconds == 1.4f);
        SAME(usage_of(machine, "one").busy_ns, 1400000); /* the union, not the sum, of two streams */
        CHECK(usage_of(machine, "one").sm_ns + 2 >= 700000 / 2 + 700000); /* each step rounds down */
        for (int i = 0; i < 4; i++)
            OK(launch(function, 10, first));
        sim_machine_step(machine, 10 * MS);
        SAME(usage_of(machine, "one").busy_ns, 1400000 + 4 * 700000); /* busy time is the sum of kernel times */
        SAME(usage_of(machine, "one").queued_ns, 1400000 + 4 * 700000); /* and nothing was in a stream after it */
        OK(launch(function, 10, first));
        OK(launch(function, 10, second)); /* do not fit beside each other: half the speed */
        sim_machine_step(machine, 1399999);
        SAME(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
        sim_machine_step(machine, 1);
        OK(cuStreamQuery(first));
        OK(cuStreamQuery(second));
        CUstream blocking; /* unlike the two others, it keeps order with the legacy stream */
        OK(cuStreamCreate(&blocking, 0));
        OK(launch(function, 2, blocking));
        OK(launch(function, 2, NULL));
        OK(launch(function, 2, blocking));
        OK(launch(function, 2, first));
        sim_machine_step(machine, 700000);
        OK(cuStreamQuery(first));
        SAME(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
        sim_machine_step(machine, 700000);
        OK(cuStreamQuery(NULL));
        SAME(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
        sim_machine_step(machine, 700000);
        OK(cuStreamQuery(blocking));
        OK(cuEventDestroy_v2(end));
        SAME(cuEventQuery(middle), CUDA_SUCCESS);
        _exit(0);
    }
    ended_well(child);
    sound(machine);
    unlink(machine_path);
}

/* Samples: a busy window, a half-busy one, an idle one. */
static void samples_say_what_was(void)
{
    struct sim_machine *machine = new_machine("samples", 1, SIM_CLOCK_VIRTUAL, 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct sim_sample samples[8];
        struct sim_process_sample of_processes[8];
        CUfunction function = ready_kernel("sim_us250500"); /* one and a half windows */
        OK(launch(function, 10, NULL));
        sim_machine_step(machine, 3 * 167 * MS + 5);
        SAME(sim_read_samples(machine, 0, 0, samples, 8), 3);
        SAME(samples[0].busy_ns, 167 * MS);
        SAME(samples[1].busy_ns, 83500000);
        SAME(samples[2].busy_ns, 0);
        SAME(samples[2].end_ns, 3 * 167 * MS);
        SAME(sim_read_samples(machine, 0, 167 * MS, samples, 8), 2);
        SAME(sim_read_process_samples(machine, 0, 0, of_processes, 8), 2); /* idle windows say nothing of processes */
        SAME(of_processes[0].pid, getpid());
        SAME(of_processes[1].busy_ns, 83500000);
        sim_machine_step(machine, UINT64_C(10000000000000)); /* hours of nothing cost nothing */
        struct sim_gpu_reading reading;
        OK(sim_read_gpu(machine, 0, &reading));
        SAME(reading.utilization_percent, 0);
        _exit(0);
    }
    ended_well(child);
    sound(machine);
    unlink(machine_path);
}

static void real_time_roughly(void)
{
    struct sim_machine *machine = new_machine("real", 1, SIM_CLOCK_REAL, 0);
    pid_t a = busy_child("a", "sim_us1000", 10), b = busy_child("b", "sim_us1000", 10);
    UNTIL(machine->groups[1].key && usage_of(machine, "a").launches > 10 && usage_of(machine, "b").launches > 10);
    struct sim_gpu_usage a0 = usage_of(machine, "a"), b0 = usage_of(machine, "b");
    uint64_t from = sim_now(machine);
    UNTIL(sim_now(machine) - from > 300 * MS);
    struct sim_gpu_usage a1 = usage_of(machine, "a"), b1 = usage_of(machine, "b");
    uint64_t a_busy = a1.busy_ns - a0.busy_ns, b_busy = b1.busy_ns - b0.busy_ns;
    CHECK(a_busy > 100 * MS && b_busy > 100 * MS);
    CHECK(a_busy < b_busy + b_busy / 4 && b_busy < a_busy + a_busy / 4);
    stop(a);
    stop(b);
    sound(machine);
    unlink(machine_path);
}

/* Words that children share. */
struct shared {
    uint32_t running, most_running, count;
    uint32_t order[64];
};

static struct shared *share(void)
{
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    return shared;
}

/* Comes back each millisecond, and says how many are at it beside this one. */
static pid_t regular_child(struct sim_machine *machine, struct shared *shared, uint32_t number)
{
    pid_t child = fork();
    CHECK(child >= 0);
    for (uint64_t at = MS; child == 0; at += MS) {
        sim_wait(machine, at, NULL, 0);
        uint32_t beside = __atomic_add_fetch(&shared->running, 1, __ATOMIC_SEQ_CST);
        if (beside > shared->most_running)
            shared->most_running = beside;
        sched_yield(); /* whoever else may run has the chance to */
        shared->order[__atomic_fetch_add(&shared->count, 1, __ATOMIC_SEQ_CST) % 64] = number;
        __atomic_sub_fetch(&shared->running, 1, __ATOMIC_SEQ_CST);
    }
    UNTIL(sim_machine_waiting(machine, &(uint64_t){0}) == number + 1);
    return child;
}

static void one_goes_on_at_a_time_in_order(void)
{
    struct sim_machine *machine = new_machine("order", 1, SIM_CLOCK_VIRTUAL, 0);
    struct shared *shared = share();
    pid_t children[4];
    for (uint32_t i = 0; i < 4; i++)
        children[i] = regular_child(machine, shared, i);
    run_virtual(machine, 500 * MS, 4);
    SAME(shared->most_running, 1);
    SAME(shared->count, 4 * 499); /* who is due at the end goes on with the next run */
    for (uint32_t i = 0; i < 64; i++)
        SAME(shared->order[i], i % 4);
    run_virtual(machine, 501 * MS, 4);
    SAME(shared->count, 4 * 500);
    stop(children[0]); /* killed while it waits: the others go on without it */
    run_virtual(machine, 503 * MS, 3);
    SAME(shared->count, 4 * 500 + 3 * 2);
    for (uint32_t i = 1; i < 4; i++)
        stop(children[i]);
    unlink(machine_path);
}

/* Words in other files move while the clock stands still: those who wait for one look one after the other, too. */
static void those_who_wait_for_another_file_look_in_order(void)
{
    enum { CHILDREN = 4 };
    struct seen {
        uint32_t word, running, together, count, order[CHILDREN];
    } *seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(seen != MAP_FAILED);
    struct sim_machine *machine = new_machine("words", 1, SIM_CLOCK_VIRTUAL, 0);
    pid_t children[CHILDREN];
    for (uint32_t i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            sim_wait(machine, UINT64_MAX - 1, &seen->word, 0);
            seen->together |= __atomic_fetch_add(&seen->running, 1, __ATOMIC_SEQ_CST) != 0;
            for (uint32_t turns = 0; turns < 1000; turns++)
                sched_yield();
            seen->order[__atomic_fetch_add(&seen->count, 1, __ATOMIC_SEQ_CST)] = i;
            __atomic_fetch_sub(&seen->running, 1, __ATOMIC_SEQ_CST);
            sim_wait(machine, UINT64_MAX - 1, NULL, 0);
        }
        UNTIL(sim_machine_waiting(machine, &(uint64_t){0}) == i + 1);
    }
    run_virtual(machine, MS, CHILDREN);
    SAME(seen->count, 0);
    __atomic_store_n(&seen->word, 1, __ATOMIC_SEQ_CST);
    run_virtual(machine, 2 * MS, CHILDREN);
    SAME(seen->count, CHILDREN);
    SAME(seen->together, 0);
    for (uint32_t i = 0; i < CHILDREN; i++) {
        SAME(seen->order[i], i);
        stop(children[i]);
    }
    unlink(machine_path);
}

/* Who has the turn waits, not for the clock, but for one whose turn is next. */
static void one_that_waits_for_another_does_not_hold_it_up(void)
{
    struct sim_machine *machine = new_machine("patience", 1, SIM_CLOCK_VIRTUAL, 0);
    int pipes[2];
    pid_t children[2];
    CHECK(pipe(pipes) == 0);
    for (uint32_t i = 0; i < 2; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            char byte = 0;
            sim_wait(machine, MS, NULL, 0);
            CHECK((i == 0 ? read(pipes[0], &byte, 1) : write(pipes[1], &byte, 1)) == 1);
            sim_wait(machine, 10 * MS, NULL, 0);
            _exit(0);
        }
        UNTIL(sim_machine_waiting(machine, &(uint64_t){0}) == i + 1);
    }
    run_virtual(machine, 5 * MS, 2);
    SAME(sim_now(machine), 5 * MS);
    stop(children[0]);
    stop(children[1]);
    unlink(machine_path);
}

static void a_run_without_its_participants_ends(void)
{
    struct sim_machine *machine = new_machine("alone", 1, SIM_CLOCK_VIRTUAL, 0);
    SAME(sim_machine_run_until(machine, MS, 1, 50 * MS), SIM_NOT_FOUND);
    SAME(sim_now(machine), 0);
    unlink(machine_path);
}

int main(void)
{
    one_goes_on_at_a_time_in_order();
    those_who_wait_for_another_file_look_in_order();
    one_that_waits_for_another_does_not_hold_it_up();
    a_run_without_its_participants_ends();
    two_processes_take_turns();
    mps_shares_the_sms();
    events_and_streams();
    samples_say_what_was();
    real_time_roughly();
    return 0;
}
