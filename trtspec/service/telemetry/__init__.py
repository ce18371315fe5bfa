"""What a server tells of itself: metrics, the status page, the request log, traces.

All of it follows requests as observers (`trtspec.service.observing`), and nothing of it decides anything.
"""
