/* The system's MPI as a peer: mpirun -n N mpi_peer OP ROUNDS SIZE... prints the median seconds of the operation for every
 * size, as one JSON line. Repeats as the other peers do: rounds of about a fiftieth of a second, a barrier before each. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void run(const char *op, float *values, float *other, int count) {
    int part = count / ranks;
    if (!strcmp(op, "all-reduce"))
        MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(op, "reduce-scatter"))
        MPI_Reduce_scatter_block(values, other, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(op, "all-gather"))
        MPI_Allgather(MPI_IN_PLACE, part, MPI_FLOAT, values, part, MPI_FLOAT, MPI_COMM_WORLD);
    else if (!strcmp(op, "broadcast"))
        MPI_Bcast(values, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (!strcmp(op, "reduce"))
        MPI_Reduce(rank == 0 ? MPI_IN_PLACE : values, values, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    else if (!strcmp(op, "all-to-all"))
        MPI_Alltoall(values, part, MPI_FLOAT, other, part, MPI_FLOAT, MPI_COMM_WORLD);
    else if (!strcmp(op, "gather"))
        MPI_Gather(values, part, MPI_FLOAT, other, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (!strcmp(op, "scatter"))
        MPI_Scatter(values, part, MPI_FLOAT, other, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (!strcmp(op, "send-recv"))
        MPI_Sendrecv(values, count, MPI_FLOAT, (rank + 1) % ranks, 0, other, count, MPI_FLOAT,
                     (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else {
        fprintf(stderr, "no operation is called %s\n", op);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int rounds = atoi(argv[2]);
    double *times = malloc(rounds * sizeof *times);
    if (rank == 0)
        printf("[");
    for (int i = 3; i < argc; i++) {
        long bytes = atol(argv[i]);
        float *values = calloc(bytes, 1), *other = calloc(bytes + 4 * ranks, 1);
        for (int warm = 0; warm < 3; warm++)
            run(argv[1], values, other, bytes / 4);
        double start = MPI_Wtime();
        run(argv[1], values, other, bytes / 4);
        double once = MPI_Wtime() - start;
        int count = once > 1e-6 ? (int)(0.02 / once) : 20000;
        count = count < 1 ? 1 : count > 20000 ? 20000 : count;
        MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);
        for (int round = 0; round < rounds; round++) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
            for (int k = 0; k < count; k++)
                run(argv[1], values, other, bytes / 4);
            times[round] = (MPI_Wtime() - start) / count;
        }
        qsort(times, rounds, sizeof *times, by_value);
        if (rank == 0)
            printf("%s%.9g", i > 3 ? ", " : "", times[rounds / 2]);
        free(values);
        free(other);
    }
    if (rank == 0)
        printf("]\n");
    MPI_Finalize();
    return 0;
}
