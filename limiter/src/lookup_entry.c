/*
 * dlsym and dlvsym. Ask hv_decide_* with the arguments and the caller's return
 * address; return its answer, or jump to the C library's function with
 * everything as it came.
 */

#if defined(__x86_64__)
#define ENTRY_MACRO \
    ".macro ENTRY name, decide\n" \
    ".globl \\name\n" \
    ".type \\name, @function\n" \
    ".p2align 4\n" \
    "\\name:\n" \
    ".cfi_startproc\n" \
    "endbr64\n" \
    "pushq %rdi\n" \
    ".cfi_adjust_cfa_offset 8\n" \
    "pushq %rsi\n" \
    ".cfi_adjust_cfa_offset 8\n" \
    "pushq %rdx\n" \
    ".cfi_adjust_cfa_offset 8\n" \
    "movq 24(%rsp), %rcx\n" /* the caller */ \
    "call \\decide\n" /* 8 + 3 * 8 bytes are on the stack, which is aligned then */ \
    "movq %rdx, %r10\n" /* final? */ \
    "popq %rdx\n" \
    ".cfi_adjust_cfa_offset -8\n" \
    "popq %rsi\n" \
    ".cfi_adjust_cfa_offset -8\n" \
    "popq %rdi\n" \
    ".cfi_adjust_cfa_offset -8\n" \
    "testq %r10, %r10\n" \
    "je 1f\n" \
    "ret\n" \
    "1:  jmp *%rax\n" \
    ".cfi_endproc\n" \
    ".size \\name, . - \\name\n" \
    ".endm\n"
#elif defined(__aarch64__)
#define ENTRY_MACRO \
    ".macro ENTRY name, decide\n" \
    ".globl \\name\n" \
    ".type \\name, %function\n" \
    ".p2align 4\n" \
    "\\name:\n" \
    ".cfi_startproc\n" \
    "hint #34\n" /* bti c */ \
    "stp x29, x30, [sp, #-48]!\n" \
    ".cfi_def_cfa_offset 48\n" \
    ".cfi_offset x29, -48\n" \
    ".cfi_offset x30, -40\n" \
    "mov x29, sp\n" \
    "stp x0, x1, [sp, #16]\n" \
    "str x2, [sp, #32]\n" \
    "mov x3, x30\n" /* the caller */ \
    "bl \\decide\n" \
    "mov x16, x0\n" \
    "mov x17, x1\n" /* final? */ \
    "ldp x0, x1, [sp, #16]\n" \
    "ldr x2, [sp, #32]\n" \
    "ldp x29, x30, [sp], #48\n" \
    ".cfi_def_cfa_offset 0\n" \
    ".cfi_restore x29\n" \
    ".cfi_restore x30\n" \
    "cbz x17, 1f\n" \
    "mov x0, x16\n" \
    "ret\n" \
    "1:  br x16\n" \
    ".cfi_endproc\n" \
    ".size \\name, . - \\name\n" \
    ".endm\n"
#else
#error "no entry code for this processor"
#endif

/* One statement, so that the compiler can't put the use before the macro. */
__asm__(".text\n" ENTRY_MACRO
        ".hidden hv_decide_dlsym\n"
        ".hidden hv_decide_dlvsym\n"
        "ENTRY dlsym, hv_decide_dlsym\n"
        "ENTRY dlvsym, hv_decide_dlvsym\n"
        /* Names that nobody else's dlsym comes before. */
        ".globl hv_own_dlsym\n"
        ".hidden hv_own_dlsym\n"
        ".set hv_own_dlsym, dlsym\n"
        ".globl hv_own_dlvsym\n"
        ".hidden hv_own_dlvsym\n"
        ".set hv_own_dlvsym, dlvsym\n");
