//! The program, its tasks, and everything that needs them, in one test program.

mod harness;

mod checkpoints;
mod classes;
mod cli;
mod codecs;
mod config;
#[cfg(feature = "cuda")]
mod cuda;
mod curves;
#[cfg(unix)]
mod dashboard;
mod datasets;
#[cfg(target_os = "linux")]
mod deaths;
#[cfg(target_os = "linux")]
mod diagnose;
mod diffusers;
mod diffusion;
mod diffusion_program;
mod doctor;
#[cfg(target_os = "linux")]
mod elastic;
#[cfg(target_os = "linux")]
mod elastic_launched;
mod examples;
mod experts;
mod find_lr;
mod fine_tuning;
#[cfg(target_os = "linux")]
mod hosts;
mod language;
mod launchers;
mod logical_ranks;
mod matrix;
mod mesh_pairs;
#[cfg(feature = "mpi")]
mod mpi;
mod own_training;
mod pages;
mod parallel;
mod pipeline;
mod plan;
#[cfg(target_os = "linux")]
mod pods;
mod precision;
mod quality;
mod recipes;
mod replicas;
mod requests;
mod run_folder;
mod search;
mod selection;
mod slurm;
mod stackgan;
mod sweep;
mod synchrony;
mod tensor_parallel;
mod traces;
mod train;
mod trained_models;
#[cfg(target_os = "linux")]
mod two_hosts;
