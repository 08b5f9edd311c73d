package fsm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema/cron"
	"pulse/schema/zone"
)

func cronTable(t testing.TB, text, zoneName string) timetable {
	t.Helper()
	f, fault := cron.Parse(text)
	if fault != "" {
		t.Fatalf("%q: %s", text, fault)
	}
	return timetable{
		spec: &pb.ScheduleSpec{Cron: text, TimeZone: zoneName, Fields: &pb.CronFields{
			Seconds: f.Seconds, Minutes: f.Minutes, Hours: f.Hours, Days: f.Days, Months: f.Months, Weekdays: f.Weekdays,
			AnyDay: f.AnyDay, AnyWeekday: f.AnyWeekday,
		}},
		zone: zoneRow(t, zoneName),
	}
}

func zoneRow(t testing.TB, name string) *pb.ZoneRow {
	t.Helper()
	spans, ok := zone.Rules(name)
	if !ok {
		t.Fatalf("no zone %s", name)
	}
	row := &pb.ZoneRow{Name: name, Release: zone.Release}
	for _, s := range spans {
		row.FromS, row.OffsetS = append(row.FromS, s.FromSeconds), append(row.OffsetS, s.OffsetSeconds)
	}
	return row
}

func us(t testing.TB, text string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMicro()
}

// The clock of Berlin leaps from 02:00 to 03:00 on 28 March 2027 and goes back
// from 03:00 to 02:00 on 31 October; that of New York from 02:00 to 03:00 on
// 14 March and back from 02:00 to 01:00 on 7 November; that of Lord Howe by half
// an hour at 02:00, on 3 October and 4 April.
func TestTimesWhereAClockChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, zone, after string
		want              []string
	}{
		// A time in the gap comes once, at the instant of the change.
		{"30 2 * * *", "Europe/Berlin", "2027-03-27T00:00:00Z", []string{"2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"}},
		{"0 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T01:00:00Z", "2027-03-29T00:00:00Z"}},
		{"*/20 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T01:00:00Z", "2027-03-29T00:00:00Z", "2027-03-29T00:20:00Z"}},
		{"30 1,2,3 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T00:30:00Z", "2027-03-28T01:00:00Z", "2027-03-28T01:30:00Z"}},
		{"30 3 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T01:30:00Z", "2027-03-29T01:30:00Z"}},
		{"30 2 * * *", "America/New_York", "2027-03-13T12:00:00Z", []string{"2027-03-14T07:00:00Z", "2027-03-15T06:30:00Z"}},
		{"15 2 * * *", "Australia/Lord_Howe", "2027-10-02T00:00:00Z", []string{"2027-10-02T15:30:00Z", "2027-10-03T15:15:00Z"}},
		// One that exists twice comes the first time.
		{"30 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", []string{"2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"}},
		{"0 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", []string{"2027-10-31T00:00:00Z", "2027-11-01T01:00:00Z"}},
		{"0 3 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", []string{"2027-10-31T02:00:00Z", "2027-11-01T02:00:00Z"}},
		{"30 1 * * *", "America/New_York", "2027-11-06T12:00:00Z", []string{"2027-11-07T05:30:00Z", "2027-11-08T06:30:00Z"}},
		// It stays behind when the time is asked for from between the two.
		{"30 2 * * *", "Europe/Berlin", "2027-10-31T00:45:00Z", []string{"2027-11-01T01:30:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2027-10-31T01:00:00Z", []string{"2027-11-01T01:30:00Z"}},
		// Every hour is every hour that passes.
		{"30 * * * *", "Europe/Berlin", "2027-03-27T23:45:00Z", []string{"2027-03-28T00:30:00Z", "2027-03-28T01:30:00Z", "2027-03-28T02:30:00Z"}},
		{"30 * * * *", "Europe/Berlin", "2027-10-30T23:45:00Z", []string{"2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z", "2027-10-31T02:30:00Z"}},
		{"*/30 * * * *", "Europe/Berlin", "2027-10-31T00:15:00Z", []string{"2027-10-31T00:30:00Z", "2027-10-31T01:00:00Z", "2027-10-31T01:30:00Z", "2027-10-31T02:00:00Z"}},
		// Dates.
		{"0 0 29 2 *", "UTC", "2027-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"0 0 31 * *", "UTC", "2027-01-31T00:00:00Z", []string{"2027-03-31T00:00:00Z", "2027-05-31T00:00:00Z"}},
		{"0 0 13 * FRI", "UTC", "2027-08-01T00:00:00Z", []string{"2027-08-06T00:00:00Z", "2027-08-13T00:00:00Z", "2027-08-20T00:00:00Z"}},
		{"0 9 * * MON", "Asia/Tokyo", "2027-08-01T00:00:00Z", []string{"2027-08-02T00:00:00Z", "2027-08-09T00:00:00Z"}},
		{"15,45 30 10 * * *", "UTC", "2027-08-01T10:30:15Z", []string{"2027-08-01T10:30:45Z", "2027-08-02T10:30:15Z"}},
		{"0 0 30 2 *", "UTC", "2027-01-01T00:00:00Z", nil},
	} {
		var got []string
		for _, at := range cronTable(t, c.text, c.zone).upcoming(us(t, c.after), max(len(c.want), 1)) {
			got = append(got, time.UnixMicro(at).UTC().Format(time.RFC3339))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q in %s after %s: %v, want %v", c.text, c.zone, c.after, got, c.want)
		}
	}
}

// The rules said in another way: second by second, without a thought for speed.
func slowNext(t timetable, after, limit int64) int64 {
	f, z := t.spec.Fields, t.zone
	offset := func(u int64) int64 {
		i, found := slices.BinarySearch(z.FromS, u)
		if !found {
			i = max(i-1, 0)
		}
		return int64(z.OffsetS[i])
	}
	matches := func(local int64) bool {
		at := time.Unix(local, 0).UTC()
		day, week := f.Days>>at.Day()&1 == 1, f.Weekdays>>int(at.Weekday())&1 == 1
		days := day || week
		if f.AnyDay || f.AnyWeekday {
			days = day && week
		}
		return f.Seconds>>at.Second()&1 == 1 && f.Minutes>>at.Minute()&1 == 1 && f.Hours>>at.Hour()&1 == 1 &&
			f.Months>>int(at.Month())&1 == 1 && days
	}
	for u := after + 1; u < limit; u++ {
		now, before := offset(u), offset(u-1)
		if f.Hours != 1<<24-1 {
			leapt := false // over a time that matches
			for gone := u + before; gone < u+now; gone++ {
				leapt = leapt || matches(gone)
			}
			if leapt {
				return u
			}
		}
		if !matches(u + now) {
			continue
		}
		twice := false // the clock has shown this before
		for back := int64(1); back <= 7200 && f.Hours != 1<<24-1; back++ {
			twice = twice || u-back+offset(u-back) == u+now
		}
		if !twice {
			return u
		}
	}
	return 0
}

func TestTimesAgreeWithASearch(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	zones := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"}
	for range 150 {
		name := zones[r.IntN(len(zones))]
		text := strings.Join([]string{
			pick("0", "*/20", "7,30"), pick("*", "0", "30", "*/7", "59"), pick("*", "*/2", "1", "2", "1-3", "0,23"),
			pick("*", "*", "1", "*/2", "28-31"), pick("*", "*", "*", "3", "10,11"), pick("*", "*", "SUN", "1-5"),
		}, " ")
		table := cronTable(t, text, name)
		z := table.zone
		after := int64(1_830_000_000) + r.Int64N(20_000_000)
		if len(z.FromS) > 1 && r.IntN(4) > 0 { // around a change
			after = z.FromS[1+r.IntN(len(z.FromS)-1)] + r.Int64N(9000) - 7000
		}
		const window = 6 * 3600
		want := slowNext(table, after, after+window)
		got := table.next(after*secondUs+r.Int64N(secondUs)) / secondUs
		if got != want && (want != 0 || got < after+window && got != 0) {
			t.Errorf("%q in %s after %d: %d, want %d", text, name, after, got, want)
		}
	}
}

func TestIntervals(t *testing.T) {
	t.Parallel()
	minute := timetable{spec: &pb.ScheduleSpec{EveryMs: 60_000}}
	if got := minute.next(us(t, "2027-01-01T00:00:59.999999Z")); got != us(t, "2027-01-01T00:01:00Z") {
		t.Errorf("next minute is %d", got)
	}
	if got := minute.next(us(t, "2027-01-01T00:01:00Z")); got != us(t, "2027-01-01T00:02:00Z") {
		t.Errorf("the minute after is %d", got)
	}
	bounded := timetable{spec: &pb.ScheduleSpec{
		EveryMs: 90_000, StartAtUs: us(t, "2027-01-01T00:00:07.5Z"), EndAtUs: us(t, "2027-01-01T00:03:07.5Z"),
	}}
	want := []int64{us(t, "2027-01-01T00:00:07.5Z"), us(t, "2027-01-01T00:01:37.5Z")}
	if got := bounded.upcoming(0, 10); !slices.Equal(got, want) {
		t.Errorf("from start to end: %d, want %d", got, want)
	}
}

func TestJitterIsTheSameForEveryTimeOfASchedule(t *testing.T) {
	t.Parallel()
	table := timetable{spec: &pb.ScheduleSpec{EveryMs: 60_000, JitterMs: 5000}}
	seen := map[int64]bool{}
	for i := range 50 {
		id := fmt.Appendf(nil, "schedule-%07d", i)
		offset := table.due(id, 60_000_000) - 60_000_000
		if offset < 0 || offset >= 5_000_000 || table.due(id, 120_000_000)-120_000_000 != offset {
			t.Errorf("schedule %d is late by %d", i, offset)
		}
		seen[offset] = true
	}
	if len(seen) < 40 {
		t.Errorf("50 schedules share %d offsets", len(seen))
	}
	if table.due([]byte("x"), 0) != 0 {
		t.Error("no time is due")
	}
}

func BenchmarkNextTime(b *testing.B) {
	for _, text := range []string{"* * * * * *", "0 2 * * *", "0 0 29 2 *"} {
		table := cronTable(b, text, "Europe/Berlin")
		b.Run(text, func(b *testing.B) {
			for range b.N {
				table.next(1_830_000_000_000_000)
			}
		})
	}
}
