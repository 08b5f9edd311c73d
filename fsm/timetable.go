package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"

	pb "pulse/proto/pulse/v1"
)

// timetable computes the times of a schedule, from numbers that are in the log
// and with whole numbers alone: neither the zone data nor the calendar of the
// version that runs has a say, so every replica gets the same times, and a log
// that is replayed in years the same ones again.
//
// Where a zone's clock changes, a text whose hours are all hours is about time
// that passes: what does not exist on the clock is left out, and what exists twice
// comes twice. Any other text is about the clock: times that the clock leaps over
// come once, at the instant of the change, and times that exist twice come the
// first time.
type timetable struct {
	spec *pb.ScheduleSpec
	zone *pb.ZoneRow // of a cron text
}

const (
	secondUs  = 1_000_000
	dayS      = 86_400
	allHours  = 1<<24 - 1
	searchedS = 9 * 366 * dayS // longer than from one 29 February to the next
)

func (r *run) timetable(spec *pb.ScheduleSpec) timetable {
	return timetable{spec: spec, zone: r.s.Zone(spec.TimeZone)}
}

// next is the first time after an instant, in Unix microseconds; 0 if there is none.
func (t timetable) next(after int64) int64 {
	after = max(after, t.spec.StartAtUs-1)
	var at int64
	if every := t.spec.EveryMs * 1000; every > 0 {
		anchor := t.spec.StartAtUs
		at = anchor + (floorDiv(after-anchor, every)+1)*every
	} else {
		at = t.nextOfCron(floorDiv(after, secondUs)+1) * secondUs
	}
	if end := t.spec.EndAtUs; end != 0 && at >= end {
		return 0
	}
	return at
}

// due is when a time is dealt with: by how much it is late is decided by the
// schedule's id, so that schedules of one time spread and the distance between the
// times of one schedule stays what it is.
func (t timetable) due(schedule []byte, nominal int64) int64 {
	if nominal == 0 {
		return 0
	}
	return nominal + t.offset(schedule)
}

func (t timetable) offset(schedule []byte) int64 {
	if t.spec.JitterMs == 0 {
		return 0
	}
	sum := sha256.Sum256(schedule)
	return int64(binary.BigEndian.Uint64(sum[:]) % uint64(t.spec.JitterMs*1000))
}

// nextOfCron is the first time at or after a Unix second; 0 if there is none.
func (t timetable) nextOfCron(from int64) int64 {
	f, z := t.spec.Fields, t.zone
	clock := f.Hours != allHours
	until := from + searchedS
	i := 0
	for i+1 < len(z.FromS) && z.FromS[i+1] <= from {
		i++
	}
	for ; from < until; i++ {
		offset, end := int64(z.OffsetS[i]), until
		if i+1 < len(z.FromS) {
			end = min(end, z.FromS[i+1])
		}
		local := from + offset
		if change := z.FromS[i]; i > 0 && clock {
			before := int64(z.OffsetS[i-1])
			if from == change && before < offset && nextLocal(f, change+before, change+offset) >= 0 {
				return change
			}
			local = max(local, change+before) // earlier ones were there before the change
		}
		if at := nextLocal(f, local, end+offset); at >= 0 {
			return at - offset
		}
		from = end
	}
	return 0
}

// nextLocal is the first second from from to before end, both on a zone's clock,
// that matches; -1 without one.
func nextLocal(f *pb.CronFields, from, end int64) int64 {
	day := floorDiv(from, dayS)
	second := from - day*dayS
	for day*dayS < end {
		year, month, dayOfMonth := civil(day)
		switch {
		case f.Months>>month&1 == 0:
			day += daysIn(year, month) - int64(dayOfMonth) // to the last one of the month
		case matchesDay(f, dayOfMonth, int(floorMod(day+4, 7))):
			if at := nextInDay(f, int(second)); at >= 0 {
				if at += day * dayS; at < end {
					return at
				}
				return -1
			}
		}
		day, second = day+1, 0
	}
	return -1
}

// nextInDay is the first matching second of a day at or after one; -1 without one.
func nextInDay(f *pb.CronFields, from int) int64 {
	hour, minute, second := from/3600, from/60%60, from%60
	for {
		h := nextBit(uint64(f.Hours), hour)
		if h < 0 {
			return -1
		}
		if h > hour {
			minute, second = 0, 0
		}
		m := nextBit(f.Minutes, minute)
		if m < 0 {
			hour, minute, second = h+1, 0, 0
			continue
		}
		if m > minute {
			second = 0
		}
		if s := nextBit(f.Seconds, second); s >= 0 {
			return int64(h*3600 + m*60 + s)
		}
		hour, minute, second = h, m+1, 0
	}
}

// nextBit is the first member of a set at or above n; -1 without one.
func nextBit(set uint64, n int) int {
	if set >>= n; set == 0 {
		return -1
	}
	return n + bits.TrailingZeros64(set)
}

// civil gives the date of a day since 1970 in the Gregorian calendar.
func civil(day int64) (year int64, month, dayOfMonth int) {
	// Years are counted from March, so that the leap day is the last of one.
	day += 719_468 // since 1 March of the year 0
	era := floorDiv(day, 146_097)
	ofEra := day - era*146_097
	yearOfEra := (ofEra - ofEra/1460 + ofEra/36_524 - ofEra/146_096) / 365
	ofYear := ofEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	fromMarch := (5*ofYear + 2) / 153
	dayOfMonth = int(ofYear - (153*fromMarch+2)/5 + 1)
	month = int(fromMarch) + 3
	year = yearOfEra + era*400
	if month > 12 {
		month, year = month-12, year+1
	}
	return year, month, dayOfMonth
}

func daysIn(year int64, month int) int64 {
	switch {
	case month == 2 && year%4 == 0 && (year%100 != 0 || year%400 == 0):
		return 29
	case month == 2:
		return 28
	case month == 4 || month == 6 || month == 9 || month == 11:
		return 30
	}
	return 31
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }

// upcoming are the next times after an instant, at most n.
func (t timetable) upcoming(after int64, n int) []int64 {
	var out []int64
	for len(out) < n {
		if after = t.next(after); after == 0 {
			break
		}
		out = append(out, after)
	}
	return out
}

// between are the times from from to before until, at most n. more says that
// there are others.
func (t timetable) between(from, until int64, n int) (times []int64, more bool) {
	for at := t.next(from - 1); at != 0 && at < until; at = t.next(at) {
		if len(times) == n {
			return times, true
		}
		times = append(times, at)
	}
	return times, false
}

// sameTimes says that two specs have the same times at the same instants.
func sameTimes(a, b *pb.ScheduleSpec) bool {
	return a.Cron == b.Cron && a.TimeZone == b.TimeZone && a.EveryMs == b.EveryMs && a.StartAtUs == b.StartAtUs &&
		a.EndAtUs == b.EndAtUs && a.MaxFires == b.MaxFires && a.JitterMs == b.JitterMs && sameFields(a.Fields, b.Fields)
}

func sameFields(a, b *pb.CronFields) bool {
	return a.GetSeconds() == b.GetSeconds() && a.GetMinutes() == b.GetMinutes() && a.GetHours() == b.GetHours() &&
		a.GetDays() == b.GetDays() && a.GetMonths() == b.GetMonths() && a.GetWeekdays() == b.GetWeekdays() &&
		a.GetAnyDay() == b.GetAnyDay() && a.GetAnyWeekday() == b.GetAnyWeekday()
}

// matchesDay says whether a day matches: both day fields have to, unless neither
// is *; then one is enough.
func matchesDay(f *pb.CronFields, dayOfMonth, weekday int) bool {
	day, week := f.Days>>dayOfMonth&1 == 1, f.Weekdays>>weekday&1 == 1
	if f.AnyDay || f.AnyWeekday {
		return day && week
	}
	return day || week
}
