"""The worker as a service of launchd, macOS' init.

:mod:`ops.service.plist` says what launchd is told, :mod:`ops.service.launchctl` how it is asked, and
:mod:`ops.service.manager` in which order. Written from Apple's launchd.plist(5) and launchctl(1).
"""
