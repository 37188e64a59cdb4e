"""What a worker counts, and how it is read: OpenTelemetry metrics, with a Prometheus endpoint on the worker.

    names    the closed list of metrics: what each one means, and its labels
    counts   plain numbers that the hot path adds to
    export   OpenTelemetry instruments that read them when they are scraped, and the endpoint

The hot path never calls OpenTelemetry: it adds to a dict, and instruments observe the dict when somebody looks.
No label is ever an execution id or a workflow id.
"""
