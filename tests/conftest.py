"""Tests run on the CPU, with four simulated devices. Programs that many tests start are compiled once."""
import os

from launch import environ

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ |= environ.compiled() | dict(os.environ)
