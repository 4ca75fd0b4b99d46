"""Requests about the queue: arrays, priorities, tenants, holds, nodes."""
