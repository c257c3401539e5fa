/* Which addresses are ours: a treap over disjoint ranges, keyed by address. Driver lock held throughout. */
#include "driver.h"

static uint32_t next_rank(void)
{
    static uint32_t state = 2463534242u; /* xorshift: the tree needs no better luck than this */
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static struct memory *merge(struct memory *low, struct memory *high)
{
    if (!low || !high)
        return low ? low : high;
    if (low->rank > high->rank) {
        low->right = merge(low->right, high);
        return low;
    }
    high->left = merge(low, high->left);
    return high;
}

static void split(struct memory *tree, uint64_t start, struct memory **low, struct memory **high)
{
    if (!tree) {
        *low = *high = NULL;
    } else if (tree->start < start) {
        split(tree->right, start, &tree->right, high);
        *low = tree;
    } else {
        split(tree->left, start, low, &tree->left);
        *high = tree;
    }
}

void sim_memory_insert(struct memory *memory)
{
    struct memory *low, *high;
    memory->left = memory->right = NULL;
    memory->rank = next_rank();
    split(sim_driver.memory, memory->start, &low, &high);
    sim_driver.memory = merge(merge(low, memory), high);
}

void sim_memory_remove(struct memory *memory)
{
    struct memory **link = &sim_driver.memory;
    while (*link && *link != memory)
        link = memory->start < (*link)->start ? &(*link)->left : &(*link)->right;
    if (*link)
        *link = merge(memory->left, memory->right);
}

struct memory *sim_memory_find(uint64_t address)
{
    struct memory *at = sim_driver.memory;
    while (at) {
        if (address < at->start)
            at = at->left;
        else if (address - at->start < at->size)
            return at;
        else
            at = at->right;
    }
    return NULL;
}

struct memory *sim_memory_next(uint64_t address)
{
    struct memory *at = sim_driver.memory, *best = NULL;
    while (at) {
        if (at->start + at->size > address) {
            best = at;
            at = at->left;
        } else {
            at = at->right;
        }
    }
    return best;
}
