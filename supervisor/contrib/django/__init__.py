"""Leasehold in Django: a backend of `django.tasks`, its handlers, `manage.py leasehold`. Used in applications.

Django 6 has `django.tasks`; for earlier ones there is the package django-tasks, whose interface is the same.
"""
